# In the guest, run by bash: everyday use for each provider and user, without the helper and with it; and a full dataset.
set -uo pipefail
here=$(dirname "$0")
. "$here/places.sh"
failed=()
everyday() { # PROVIDER USER EXPECTED SHAPE [no-branch]
    echo "-- $*"
    local began=$SECONDS output
    if output=$(bash "$here/everyday.sh" "$@" 2>&1); then
        echo "   $(tail -n 1 <<<"$output"), $((SECONDS - began)) s"
    else
        echo "$output"
        failed+=("$*")
    fi
}
everyday git user git root
everyday btrfs root btrfs root
everyday btrfs root btrfs inside
everyday btrfs user btrfs root
everyday btrfs user btrfs inside
everyday zfs root zfs root
everyday zfs root zfs inside
everyday zfs user zfs root no-branch
# Without the helper, what this user may not snapshot is served by the next provider.
everyday zfs other git inside
if helper; then
    everyday btrfs other btrfs_ahd inside
    everyday zfs other zfs_ahd inside
else
    failed+=("ordinary users served by ahd, which is not built")
fi
echo "-- a full dataset"
bash "$here/full.sh" || failed+=("a full dataset")
[ ${#failed[@]} = 0 ] || { printf 'FAILED: %s\n' "${failed[@]}"; exit 1; }
