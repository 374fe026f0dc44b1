#!/bin/sh
# Packs a checkpoint folder of lab/recipes/train.py into the archive that is compiled into ntl-server.
# The same files give the same bytes: names sorted, no times, no owners, no gzip header time.
#
#     server/demo/pack.sh FOLDER
set -eu

folder=${1:?usage: pack.sh FOLDER}
archive=$(cd "$(dirname "$0")" && pwd)/demo.tar.gz

tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r -C "$folder" -c \
    config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json \
    | gzip -9n >"$archive"
