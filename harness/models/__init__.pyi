from .gnn import GNN as GNN
from .gnn import evaluation_values as evaluation_values
from .layer import BlockSize as BlockSize
from .layer import GraphLayer as GraphLayer
