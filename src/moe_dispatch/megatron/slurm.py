"""An emitted configuration as a Slurm job around the reader's own training command."""

from __future__ import annotations

import shlex

from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.configuration import Emitted
from moe_dispatch.megatron.launch_lines import environment, nodes_of, shell
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload


def slurm_script(emitted: Emitted, workload: Workload, site: Site) -> str:
    """A batch script for Megatron-LM: one `torchrun` a node, the reader's `$TRAINING_ARGS`, then the dispatcher's.

    The dispatcher's arguments stand last, so that they win over the same flags in `$TRAINING_ARGS`; forced routing is
    for benchmarks and is not in it.

    Raises:
        UsageError: nothing was emitted, or the site does not say how many GPUs a node has.
    """
    per_node, nodes = nodes_of(workload, site)
    if emitted.emitted is None:
        raise UsageError(f"Megatron ships no {emitted.requested.dispatcher}", "emit a dispatcher that it ships")
    if not nodes.isdecimal():
        raise UsageError(f"{site.name} does not say how many GPUs a node has", "give --site NAME --nodes N")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment(emitted, workload, site).items()]
    words = shell(emitted.megatron_lm_args)
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --nodes={nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={per_node}",
            "#SBATCH --exclusive",
            f"# {emitted.emitted.label}, Megatron-Core {emitted.core_version}. Set MEGATRON_LM and TRAINING_ARGS.",
            "set -euo pipefail",
            *exports,
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_PORT=${MASTER_PORT:-29500}",
            "srun --kill-on-bad-exit=1 bash -c '",
            '  cd "$MEGATRON_LM"',
            f"  exec torchrun --nproc-per-node {per_node} --nnodes {nodes} --node-rank $SLURM_NODEID \\",
            "    --master-addr $MASTER_ADDR --master-port $MASTER_PORT pretrain_gpt.py $TRAINING_ARGS \\",
            f"    {words}'",
            "",
        ]
    )
