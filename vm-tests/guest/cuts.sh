# In the guest, run by bash: the disks of the power cuts, made at first, checked and mounted after that.
#
#   cuts.sh first|again PLACES
set -euo pipefail
mkdir -p /mnt/git /mnt/btrfs /mnt/zfs
for place in $2; do
    disk=/dev/ah/$place
    case $place-$1 in
        git-first) mkfs.ext4 -q "$disk"; mount "$disk" /mnt/git; mkdir /mnt/git/{work,home} ;;
        btrfs-first)
            mkfs.btrfs -q "$disk" >/dev/null
            mount "$disk" /mnt/btrfs
            btrfs -q subvolume create /mnt/btrfs/work
            mkdir /mnt/btrfs/home
            ;;
        zfs-first)
            # The default of 5 s between two groups of transactions leaves a cut much to lose.
            zpool create -f -o cachefile=none -o ashift=12 -O mountpoint=/mnt/zfs tank "$disk"
            zfs create tank/work
            zfs create tank/home
            ;;
        git-again) mount "$disk" /mnt/git ;;
        btrfs-again) mount "$disk" /mnt/btrfs ;;
        zfs-again) zpool import -f -o cachefile=none -d "$(readlink -f "$disk")" tank ;;
    esac
done
sync
