#!/usr/bin/env bash
# Runs the GPU kernels on a host that has a GPU, torch and pytest, but no Mojo compiler.
#
#   scripts/gpu_host.sh pack FOLDER    here: builds the modules, packs what they need (25 MB)
#   scripts/gpu_host.sh test FOLDER    there, in a copy of the repository: the claims on the device
#   scripts/gpu_host.sh portable FOLDER    there: the same of products, by the portable kernels
#   scripts/gpu_host.sh sanitize FOLDER    there, minutes: no access outside an operand (memcheck), none that races
#   scripts/gpu_host.sh check FOLDER FILE    there, a minute: how good Hopper's choice of plan is
#   scripts/gpu_host.sh nvfp4 FOLDER FILE    there, a minute: what NVFP4 weights take beside MXFP4
#   scripts/gpu_host.sh bench FOLDER RESULTS COMMIT    there: tables, CSV and plot, to folder RESULTS
#   scripts/gpu_host.sh rocm RESULTS    on an MI355X, with the package and torch for ROCm installed, an hour:
#                                       claims, times beside peers' and the model's; RESULTS.tar.gz has all
#
# FOLDER/site is put on the Python path: packages that the host lacks, and peers of the bench.
set -euo pipefail
ARCHITECTURE=${ARCHITECTURE:-sm_90a}
CPU=${CPU:-x86-64-v3}
RUNTIME=(lib{AsyncRTMojoBindings,AsyncRTRuntimeGlobals,KGENCompilerRTShared,MSupportGlobals,MGPRT,NVPTX}.so)
mapfile -t PEERS < <(sed -n 's/^bench-cuda = \[\(.*\)\]$/\1/p' pyproject.toml | grep -o '[^", ]\+')
# What makes its claims on CUDA tensors too.
TESTS=(hopper/test_cuda{,_fp8,_bytes,_experts,_nvfp4}.py simt/test_cuda{,_tiles}.py
    numerics/test_{quantize,dequantize,layouts,matmul,weight_only,experts,fp8,nvfp4,fused,fuzz}.py
    python/test_{tensor,tensor_parts,tensor_torch,modules,convert,convert_kept,torch_ops,torch_gradients}.py
    python/test_{ops_inputs,experts}.py)
SANITIZED=${SANITIZED:-short_k or derived_bound or pair_of_formats}
PORTABLE_TESTS=(simt/test_cuda_tiles.py numerics/test_{matmul,weight_only,fp8,fuzz}.py)

# A small call of each of Hopper's kernels and of the portable ones, for racecheck, which is slow.
RACED='
import torch, mx_kernels as mx
from mx_kernels._core.cuda import CUDA
torch.set_default_device("cuda")
def weights(format, n, k, *lead):
    return mx.quantize(torch.randn(*lead, n, k), format=format)
def run(plan, m, right, mode, k=544):
    CUDA.plan = plan
    w = weights(right, 160, k)
    mx.linear(torch.randn(m, k).bfloat16(), w if plan == "portable" else w.preshuffle(device="cuda"), activations=mode)
for mode in ("bf16", "mxfp4"):
    for plan, m in (("stream 8x32 splitK2", 5), ("stream 32x64", 20), ("rs_bf16 64x128 splitK2", 33),
                    ("rs_bf16 256x128", 300), ("rs_bf16 128x128 streamK", 300), ("portable", 100)):
        run(plan, m, "mxfp4", mode)
for plan in ("ss_bf16 128x128 prepared", "rs_bf16 256x64 splitK2"):
    run(plan, 200, "mxfp4", "bf16", 576)
for m in (40, 300, 2000):
    for right, mode in (("mxfp4", "mxfp4"), ("mxfp4", "mxfp8"), ("mxfp8", "mxfp8"), ("fp8", "fp8"), ("nvfp4", "nvfp4")):
        run("", m, right, mode)
gate_up, down = (weights("mxfp4", *shape, 3).preshuffle(device="cuda") for shape in ((192, 96), (96, 96)))
for tokens in (2, 20, 60, 300):
    for mode in ("bf16", "mxfp4", "mxfp8"):
        ids = torch.randint(3, (tokens, 2))
        mx.moe(torch.randn(tokens, 96).bfloat16(), gate_up, down, ids, torch.rand(tokens, 2), activations=mode)
gate_up, down = (weights("mxfp4", *shape, 2).preshuffle(device="cuda") for shape in ((10304, 96), (96, 5152)))
mx.moe(torch.randn(5, 96).bfloat16(), gate_up, down, torch.randint(2, (5, 2)), torch.rand(5, 2), activations="bf16")
torch.cuda.synchronize()
'

pack() {
    local lib built
    lib=$(python -c 'import importlib.util as u; print(u.find_spec("modular").submodule_search_locations[0])')/lib
    built=$(mktemp -d)
    mkdir -p "$1/site"
    build() { mojo build --emit shared-lib --target-cpu "$CPU" -I . "$@"; }
    build mojo_kernels/bindings/cpu.mojo -o "$built/_mx_kernels_native.so"
    build mojo_kernels/bindings/plans.mojo -o "$built/_mx_kernels_plans.so"
    build --target-accelerator "$ARCHITECTURE" mojo_kernels/bindings/cuda.mojo -o "$built/_mx_kernels_gpu.so"
    cp "${RUNTIME[@]/#/$lib/}" "$built"
    tar -C "$built" -cf - . | xz -T0 -6 > "$1/modules.tar.xz"
    rm -r "$built"
    # What DeepGEMM is loaded by has a wheel for each Python.
    python -m pip install --quiet --no-deps --upgrade --only-binary :all: --python-version 3.12 \
        --target "$1/site" platformdirs apache-tvm-ffi==0.1.11 "${PEERS[@]}"
}

enter() {
    local modules
    modules=$(mktemp -d)
    tar -C "$modules" -xJf "$1/modules.tar.xz"
    export LD_LIBRARY_PATH=$modules
    export MX_KERNELS_NATIVE=$modules/_mx_kernels_native.so MX_KERNELS_PLANS=$modules/_mx_kernels_plans.so
    export MX_KERNELS_GPU=$modules/_mx_kernels_gpu.so
    export PYTHONPATH=$PWD/python:$PWD/tests:$1/site:$PWD
}

case "${1:-}" in
    pack)  pack "$2" ;;
    test)  enter "$2"; python3 -m pytest -q -k cuda "${TESTS[@]/#/tests/}" ;;
    portable) enter "$2"; python3 -m pytest -q -k cuda --portable "${PORTABLE_TESTS[@]/#/tests/}" ;;
    sanitize)  # each tensor is an allocation of its own, whose end memcheck knows
           enter "$2"
           PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 \
               python3 -m pytest -q -k "$SANITIZED" tests/hopper
           compute-sanitizer --tool racecheck --error-exitcode 9 python3 -c "$RACED" ;;
    check) enter "$2"; python3 -m bench.cuda_tune check "$3" ;;
    nvfp4) enter "$2"; python3 -m bench.cuda_tune nvfp4 "$3" ;;
    bench) enter "$2"; BENCH_COMMIT=$4 python3 -m bench.run --target cuda --results "$3" ;;
    rocm)  mkdir -p "$2"
           python3 -m mx_kernels doctor 2>&1 | tee "$2/doctor.txt"
           all_pass=0
           python3 -m pytest -q -k cuda $(printf 'tests/%s\n' "${TESTS[@]}" | grep -v 'hopper\|simt') 2>&1 \
               | tee "$2/claims.txt" || all_pass=1
           python3 -m bench.run --target gfx950 --results "$2"
           tar -C "$(dirname "$2")" -czf "$2.tar.gz" "$(basename "$2")"
           echo "$2.tar.gz has what was found: please send it to us"
           exit "$all_pass" ;;
    *)     sed -n '2,14p' "$0"; exit 2 ;;
esac
