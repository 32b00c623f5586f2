from .gnn import GNN as GNN
from .layer import BlockSize as BlockSize
from .layer import GraphLayer as GraphLayer
from .memory import evaluation_values as evaluation_values
