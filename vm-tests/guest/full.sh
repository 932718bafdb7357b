# In the guest, run by bash: a full dataset whose snapshots hold AH_HOME with its reserve, as where /home is one. What is to free it does.
set -euo pipefail
here=$(dirname "$0")
. "$here/places.sh"
trap 'echo "error: line $LINENO: $BASH_COMMAND" >&2' ERR

# fill NAME: until not a byte fits, on disk.
fill() {
    local size
    while
        for size in 128k 4k 512; do
            dd if=/dev/urandom bs=$size 2>/dev/null >>"$folder/full/$1" || true
            zpool sync tank
        done
        echo >>"$folder/full/$1.last"
    do :; done 2>/dev/null
}

place zfs root
zfs create -o quota=80M "tank/root/full"
export AH_HOME=$folder/full/.ah
mkdir "$folder/full/project"
cd "$folder/full/project"
ids=()
for _ in 1 2 3; do
    head -c 10000000 /dev/urandom >big
    ids+=("$(ah agent fs snapshot)")
done
branch=$(ah agent fs branch "${ids[2]}" --name b)
head -c 10000000 /dev/urandom >"$branch/big"
fill a
ah agent fs rm "${ids[0]}"
fill b
# What `rm` left to be given back may be at work in the store still, for longer than a slow machine is waited for.
for _ in $(seq 30); do ah agent fs prune keep-last=1 && break; sleep 1; done
left=$(ah agent fs snapshots --json | grep -o '"id":"[^"]*"')
test "$left" = "\"id\":\"${ids[2]}\""
# What is known of a clone is written before it goes, so that waits until there is room.
ah agent fs rm --force b
test ! -e "$branch"
ah agent fs gc
ah agent fs snapshot
cd /
zfs destroy -r tank/root/full
echo "what frees a full dataset works where its snapshots hold AH_HOME"
