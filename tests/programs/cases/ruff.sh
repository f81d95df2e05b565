# title: ruff and uv (wheels from PyPI)
# version: /wheels/bin/ruff --version; /wheels/bin/uv --version | cut -d ' ' -f 1,2
# timeout: 200
# needs: wheels
cp -r /usr/lib/python3.13/asyncio /usr/lib/python3.13/email . 
/wheels/bin/ruff check --no-cache --isolated --select E,F,W,B,UP --statistics . | sort | md5sum
/wheels/bin/ruff format --no-cache --isolated . && cat asyncio/*.py | md5sum
/wheels/bin/uv --offline --no-cache venv --python /usr/bin/python3 v 2>/dev/null && v/bin/python -c 'import sys; print(sys.prefix)'
printf 'a==1\n' >r.txt; /wheels/bin/uv --offline --no-cache pip compile r.txt 2>&1 | head -n 1
