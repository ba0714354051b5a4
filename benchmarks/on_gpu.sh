#!/bin/sh
# Measures one GPU in ten minutes, from a machine that has CUDA's driver and Python and nothing else.
#     benchmarks/on_gpu.sh                       # everything; the report is in benchmarks/results/, or in $OUT where that is set
#     benchmarks/on_gpu.sh --only starts reads   # some parts, for what there was no time for
#     benchmarks/on_gpu.sh --dry                 # tiny sizes on the CPU, to try the script where there is no GPU
# PYTHON names the interpreter. Where it has JAX for CUDA, PyTorch and the rest already, nothing is installed.
set -eu
cd "$(dirname "$0")/.."
export KERAS_BACKEND=jax PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" ON_GPU_BEGAN="$(date +%s)"
python="${PYTHON:-}"
if [ -z "$python" ]; then
  python=python3
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
fi
dry=
for option in "$@"; do if [ "$option" = --dry ]; then dry=1; fi; done
has_all='import google_crc32c, hypothesis, jax, keras, PIL, pyarrow, pytest, torch; jax.devices("gpu")'
packages='jax[cuda13]>=0.10 keras>=3.12 numpy>=2.0 google-crc32c>=1.6 torch pillow simplejpeg pyarrow pytest pytest-timeout hypothesis'
if [ -z "$dry" ] && ! timeout 120 "$python" -c "$has_all" 2>/dev/null; then
  echo "Installing JAX for CUDA and PyTorch into build/on_gpu ..." >&2
  # shellcheck disable=SC2086 - a list of words
  if timeout 60 "$python" -m venv build/on_gpu && timeout 240 build/on_gpu/bin/python -m pip install -q --disable-pip-version-check $packages; then
    python="$PWD/build/on_gpu/bin/python"
  else
    echo "on_gpu: that failed. Measuring what $python can." >&2
  fi
fi
exec "$python" benchmarks/on_gpu "$@"
