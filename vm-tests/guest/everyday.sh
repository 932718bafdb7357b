# In the guest, run by bash: everyday use of the command line, from a snapshot to gc.
#
#   everyday.sh PROVIDER USER EXPECTED SHAPE [no-branch]
#                                                 SHAPE: root, the workspace is a subvolume or dataset itself; inside, it is a
#                                                 directory in one. EXPECTED is the provider that must be chosen. no-branch: this
#                                                 user can have none, and is told what would help.
set -euo pipefail
here=$(dirname "$0")
. "$here/places.sh"

everyday() {
    set -euo pipefail
    trap 'echo "error: line $LINENO of everyday: $BASH_COMMAND" >&2' ERR
    local expected=$1 workspace=$2 branches=${4-} first view branch safety changed shown left
    export AH_HOME=$3
    cd "$workspace"
    chosen=$(ah agent fs status --json | sed 's/.*"provider":"\([^"]*\)".*/\1/')
    [ "$chosen" = "$expected" ] || { ah agent fs status; echo "error: $chosen serves this, not $expected"; exit 1; }

    echo one >file
    mkdir -p sub/empty
    chmod 640 file
    ln -s file link
    printf 'odd' >"$(printf 'odd \n\t"\\\377')"
    touch -d '2001-02-03 04:05:06' sub/empty
    first=$(ah agent fs snapshot -m "before it")
    echo two >file
    rm -r sub
    echo new >added
    ah agent fs snapshots | grep -q 'before it'
    changed=$(ah agent fs diff "$first" --name-status | wc -l)
    test "$changed" = 4
    shown=$(ah agent fs cat "$first" file)
    test "$shown" = one
    view=$(ah agent fs seek "$first")
    test "$(cat "$view/file")" = one
    test -d "$view/sub/empty"
    test "$(readlink "$view/link")" = file
    test "$(stat -c %Y "$view/sub/empty")" = "$(date -d '2001-02-03 04:05:06' +%s)"
    if touch "$view/x" 2>/dev/null; then echo "error: a view can be written to"; exit 1; fi
    ah agent fs release "$view"
    if [ -n "$branches" ]; then
        if ah agent fs branch "$first" --name b 2>"$AH_HOME/said"; then echo "error: a branch, unexpectedly"; exit 1; fi
        grep -q '^hint: .*ahd' "$AH_HOME/said" || { cat "$AH_HOME/said"; exit 1; }
    else
        branch=$(ah agent fs branch "$first" --name b)
        test "$(cat "$branch/file")" = one
        echo three >"$branch/file"
        test "$(cat file)" = two
        ah agent fs branches | grep -q '^b '
        # What is shown at the workspace's path needs a mount, which a user namespace allows.
        shown=$(ah agent fs exec b -- sh -c 'pwd; cat file')
        test "$shown" = "$workspace
three"
        if ah agent fs rm b 2>/dev/null; then echo "error: a branch with work in it was removed without --force"; exit 1; fi
        ah agent fs rm --force b
    fi
    safety=$(ah agent fs restore 'before it')
    test -n "$safety"
    test "$(cat file)" = one
    test -d sub/empty
    test "$(stat -c %a file)" = 640
    test ! -e added
    ah agent fs undo >/dev/null
    test "$(cat file)" = two
    test ! -e sub
    test "$(cat added)" = new
    ah timeline --json | grep -q "$first"
    ah agent fs rm "$first"
    if ah agent fs show "$first" 2>/dev/null; then echo "error: a removed snapshot is still there"; exit 1; fi
    ah agent fs gc >/dev/null
    left=$(ah agent fs gc --json | sed 's/.*"actions":\(\[[^]]*\]\).*/\1/')
    test "$left" = '[]'
}

provider=$1 user=$2 expected=$3 shape=$4
if [ "$shape" = inside ]; then
    place "$provider" "$user"
    workspace=$folder/inside/$expected
    as "$user" mkdir -p "$workspace"
else
    project "$provider" "$user"
fi
as "$user" bash -c "$(declare -f everyday); everyday \"\$@\"" - "$expected" "$workspace" "$folder/.ah-$shape-$expected" "${5-}"
echo "everyday use works: $provider as $user, $shape, served by $expected"
