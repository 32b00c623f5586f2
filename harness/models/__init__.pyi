from .gnn import GNN as GNN
from .layer import BlockSize as BlockSize
from .layer import GraphLayer as GraphLayer
