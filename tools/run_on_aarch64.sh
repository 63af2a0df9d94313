#!/bin/sh
# Python for AArch64 on x86-64, by qemu-user: makes it in a folder, and runs what is given, or
# platform_features.py and the files of tests that need no training library.
#
#   sh tools/run_on_aarch64.sh build/aarch64                         # or: make test-aarch64
#   sh tools/run_on_aarch64.sh build/aarch64 -m pytest -q tests/schedule_prims/test_nest.py
#
# It needs root, PYTHON with this package and ziglang, python3 if unset, and on Debian apt-get install
# mmdebstrap qemu-user-static unzip. CPU names another processor that qemu knows: CPU=cortex-a53. The
# system is not entered: qemu looks for its files in the folder first, and Python starts itself by
# the script that it takes for its own program.
set -eu
[ $# -gt 0 ] || { echo "usage: $0 FOLDER [arguments of python]" >&2; exit 2; }
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
python=${PYTHON:-python3}
wheels="apache-tvm==0.27.0.post1 apache-tvm-ffi<0.1.15 numpy ml-dtypes typing-extensions orjson rich
markdown-it-py mdurl pygments pytest iniconfig pluggy packaging hypothesis sortedcontainers"

if [ ! -e "$folder/installed" ]; then
  rm -rf "$folder/root" "$folder/site"
  mmdebstrap --variant=extract --architectures=arm64 \
    --include=python3,libgomp1,libstdc++6,gcc,libc6-dev bookworm "$folder/root" ${MIRROR:-}
  mkdir -p "$folder/root/proc" "$folder/site" "$folder/wheels"
  # as Linux tells it on Neoverse N1; qemu 7 would show the file of the machine at hand
  {
    printf 'processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp '
    printf 'asimdhp cpuid asimdrdm lrcpc dcpop asimddp\nCPU implementer\t: 0x41\n'
    printf 'CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n'
  } > "$folder/root/proc/cpuinfo"
  platforms=
  for glibc in 17 24 27 28; do platforms="$platforms --platform manylinux_2_${glibc}_aarch64"; done
  for wheel in $wheels; do
    "$python" -m pip download -q --no-deps -d "$folder/wheels" --only-binary=:all: \
      --python-version 3.11 $platforms --platform manylinux2014_aarch64 "$wheel"
  done
  for wheel in "$folder"/wheels/*.whl; do unzip -q -o "$wheel" -d "$folder/site"; done
  cat > "$folder/python" << EOF
#!/bin/sh
export PYTHONPATH="$folder/site:$checkout:$checkout/tests/helpers" OPENBLAS_NUM_THREADS=1
exec qemu-aarch64-static -L "$folder/root" -cpu \${CPU:-neoverse-n1} -0 "$folder/python" \\
  "$folder/root/usr/bin/python3.11" "\$@"
EOF
  chmod +x "$folder/python"
  # what is not compiled once would be at every start
  PYTHONDONTWRITEBYTECODE= "$folder/python" -m compileall -qq "$folder/site" || true
  touch "$folder/installed"
fi

cd "$checkout"
[ $# -eq 0 ] || exec "$folder/python" "$@"
PYTHONPATH="$checkout:$checkout/tests/helpers" "$python" tools/platform_features.py \
  --make "$folder/made" aarch64-linux-gnu
"$folder/python" tools/platform_features.py --library "$folder/made"
exec "$folder/python" -m pytest -q -p no:cacheprovider \
  -m "not slow and not gpu and not long and not rare" \
  tests/runtime/test_pool.py tests/system/test_platforms.py \
  tests/system/test_cores.py tests/schedule_prims/test_nest.py \
  tests/schedule_prims/test_schedule.py
