# In the guest, run by bash: the conformance suite on providers' own filesystems, all at once.
#
#   contract.sh USER PROVIDER…
#
# Each case has a limit of its own; a beat now and then tells the host that the guest is not hung meanwhile.
set -euo pipefail
here=$(dirname "$0")
. "$here/places.sh"
user=$1
shift
running=()
for provider in "$@"; do
    place "$provider" "$user"
    mkdir -p "$folder/contract"
    chown "$user" "$folder/contract"
    (
        cd "$folder"
        # Emulated, and all at once: far slower than on a machine.
        as "$user" timeout 2400 ah agent fs check --scratch "$folder/contract" --strict --limit 300 \
            "/ah/providers/libah_provider_$provider.so" >"/tmp/contract-$provider" 2>&1
    ) &
    running+=("$!=$provider")
done
while sleep 30; do echo "   ($(cut -d. -f1 /proc/uptime) s)"; done &
beat=$!
failed=0
for job in "${running[@]}"; do
    if ! wait "${job%%=*}"; then
        failed=1
        echo "-- ${job#*=} as $user: NOT KEPT"
    else
        echo "-- ${job#*=} as $user:"
    fi
    grep -v '^skip' "/tmp/contract-${job#*=}" || true
done
kill "$beat"
exit $failed
