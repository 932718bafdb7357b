# In the guest, run by bash: the disks of the power cuts, made at first, checked and mounted after that.
#
#   cuts.sh first|again DISK:NAME:USER:SHAPE:REPOSITORY…      a workspace each, as vm-tests/src/kinds.rs has them; SHAPE: unit, it is
#                                                             a subvolume or dataset of its own; within, a directory in one of root's
set -euo pipefail
when=$1
shift

# The helper's own state is on a disk of its own, on which nobody takes a snapshot: that would write out what was not synced. Before
# ZFS: what it keeps mounted for users lies below.
[ "$when" = again ] || mkfs.btrfs -q /dev/ah/system >/dev/null
mount /dev/ah/system /var/lib
mkdir -p /etc/ah
echo '{"allow-containing": ["other"]}' >/etc/ah/ahd.conf

mkdir -p /mnt/git /mnt/btrfs /mnt/top
for disk in $(printf '%s\n' "$@" | cut -d: -f1 | sort -u); do
    device=/dev/ah/$disk
    case $disk-$when in
        git-first)
            mkfs.ext4 -q "$device"
            mount "$device" /mnt/git
            ;;
        git-again) mount "$device" /mnt/git ;;
        btrfs-first)
            mkfs.btrfs -q "$device" >/dev/null
            mount "$device" /mnt/top
            ;;
        btrfs-again) mount "$device" /mnt/top ;;
        # The default of 5 s between two groups of transactions leaves a cut much to lose.
        zfs-first) zpool create -f -o cachefile=none -o ashift=12 -O mountpoint=/mnt/zfs tank "$device" ;;
        zfs-again) zpool import -f -o cachefile=none -d "$(readlink -f "$device")" tank ;;
    esac
done

# Made once, since git takes long to start here: a repository with commits and an ignored directory, and a work tree linked to it.
repositories() {
    mkdir "$1"
    cd "$1"
    git init -q -b main --template= main
    # What is committed has to survive the cut by git's own doing. The section that is open is core's.
    cat >>main/.git/config <<'END'
    fsync = all
[gc]
    auto = 0
[user]
    name = user
    email = user@example.org
END
    mkdir main/out main/src
    echo 'out/' >main/.gitignore
    for number in 1 2; do
        echo "built $number" >main/out/$number
        echo "source $number" >main/src/$number
        git -C main add -A
        git -C main commit -q -m "commit $number"
    done
    cp -a main own
    git -C main worktree add -q ../work
    cp -a main/out work
    cd - >/dev/null
}
[ "$when" = again ] || repositories /tmp/repositories

for workspace in "$@"; do
    IFS=: read -r disk name user shape repository <<<"$workspace"
    folder=/mnt/$disk/$name
    if [ "$disk" = btrfs ]; then
        # Mounted by itself, as homes often are: then what is kept of it is in it.
        [ "$when" = again ] || btrfs -q subvolume create "/mnt/top/$name"
        mkdir -p "$folder"
        mount -o subvol="$name" /dev/ah/btrfs "$folder"
    fi
    [ "$disk-$when" != zfs-first ] || zfs create "tank/$name"
    mkdir -p "$folder/home"
    if [ "$name" = zfs-ahd ]; then
        # On another filesystem than the project.
        mkdir -p /var/lib/home
        mount --bind /var/lib/home "$folder/home"
    fi
    [ "$when" = first ] || continue
    case $disk-$shape in
        btrfs-unit) btrfs -q subvolume create "$folder/work" ;;
        zfs-unit) zfs create "tank/$name/work" ;;
        *) mkdir "$folder/work" ;;
    esac
    case $repository in
        Own) cp -a /tmp/repositories/own/. "$folder/work" ;;
        Linked)
            cp -a /tmp/repositories/main /tmp/repositories/work "$folder"
            echo "gitdir: $folder/main/.git/worktrees/work" >"$folder/work/.git"
            echo "$folder/work/.git" >"$folder/main/.git/worktrees/work/gitdir"
            ;;
    esac
    [ "$user" = root ] || chown -R "$user:$user" "$folder"/*
done
sync
