#!/bin/bash
# A suite on several nodes under Slurm: sbatch docs/cluster/slurm.sh suites/reddit.yaml
# One task a node: harness starts the ranks of a node itself, one for each part of the graph that it is given.
#SBATCH --job-name=harness
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --output=harness-%j.txt
# With GPUs: #SBATCH --gpus-per-node=4

set -euo pipefail
suite=${1:?usage: sbatch slurm.sh SUITE [options of harness run]}
shift

# Caches are built on each node's own disk; see "What must be alike, what is shared" in docs/cluster.md before you share one.
export HARNESS_CACHE=${HARNESS_CACHE:-${TMPDIR:-/tmp}/harness-$USER}

# Nodes know each other by a secret of this job's; srun hands it to them.
HARNESS_SECRET=${HARNESS_SECRET:-$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')}
export HARNESS_SECRET

# Nodes, addresses and port are read from Slurm's variables. --kill-on-bad-exit=0: a node that ends must not
# take the others with it, they go on with the next trial.
srun --ntasks-per-node=1 --kill-on-bad-exit=0 \
    harness run "$suite" --results "${RESULTS:-results}" "$@"
