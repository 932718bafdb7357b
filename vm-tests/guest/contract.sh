# In the guest, run by bash: the conformance suite on providers' own filesystems, all that is asked for at once.
#
#   contract.sh PROVIDER:USER:WAY[:CASES]…
#
# WAY: library (in the suite's process), process (each in one of its own, as `ah agent fs check` has it), helper (by ahd).
# CASES: parts of cases' names, with commas between them; none: all.
set -euo pipefail
here=$(dirname "$0")
. "$here/places.sh"
# As many calls as the suite likes.
ahd_config='{"allow-containing": ["other"], "limits": {"connections": 64, "calls-per-minute": 1000000, "stores": 100000}}'
# Without `flushoncommit` a file that is saved under a new name while a snapshot is taken can be empty in it (docs/SEMANTICS.md): here, in
# every second run of the case that looks for it.
btrfs_options=user_subvol_rm_allowed,flushoncommit
running=() scratches=()
for suite in "$@"; do
    IFS=: read -r provider user way themes <<<"$suite"
    IFS=, read -r -a cases <<<"$themes"
    place "$provider" "$user"
    scratch=$folder/contract-$way
    mkdir -p "$scratch"
    chown "$user" "$scratch"
    scratches+=("$scratch")
    # Root lacks nothing here; what needs root is not for the others.
    strict=()
    [ "$user" != root ] || strict=(--strict)
    library=/ah/providers/libah_provider_$provider.so
    case $way in
        library) suite=(ah-vm contract --scratch "$scratch" --library "$library" "${strict[@]}" "${cases[@]}") ;;
        helper)
            [ -S /run/ahd/ahd.sock ] || helper
            suite=(ah-vm contract --scratch "$scratch" --helper "${provider}_ahd" "${strict[@]}" "${cases[@]}")
            ;;
        # The limit is for emulation: see vm-tests/src/contract.rs.
        process)
            only=()
            for case in "${cases[@]}"; do only+=(--only "$case"); done
            suite=(ah agent fs check --scratch "$scratch" --all --limit 400 "${strict[@]}" "${only[@]}" "$library")
            ;;
    esac
    (cd "$scratch" && as "$user" "${suite[@]}" 2>&1 |
        while IFS= read -r line; do echo "$provider $user $way: $line"; done) &
    running+=("$!=$provider as $user, $way")
done
# The host takes silence for a hang. Each case has a directory of its own: as long as they change, something goes on.
now=''
while sleep 30; do
    before=$now now=$(ls "${scratches[@]}")
    [ "$now" = "$before" ] || echo "($(cut -d. -f1 /proc/uptime) s)"
done &
beat=$!
failed=0
for job in "${running[@]}"; do
    if wait "${job%%=*}"; then
        echo "-- ${job#*=}: kept"
    else
        echo "-- ${job#*=}: NOT KEPT"
        failed=1
    fi
done
kill "$beat"
exit $failed
