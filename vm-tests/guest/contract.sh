# In the guest, run by bash: the conformance suite on a provider's own filesystem.
#
#   contract.sh PROVIDER USER [ARGUMENT OF CHECK]…
set -euo pipefail
here=$(dirname "$0")
. "$here/places.sh"
provider=$1 user=$2
shift 2
place "$provider" "$user"
cd "$folder"
as "$user" ah agent fs check --scratch "$folder" --strict "$@" "/ah/providers/libah_provider_$provider.so"
