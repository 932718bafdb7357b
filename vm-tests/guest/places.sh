# In the guest, read by the suites: filesystems on the empty disks a and b, and folders on them.
#
#   place PROVIDER USER      that user's home on that provider's filesystem; its path is in $folder
#                            of root and user it is a subvolume or dataset of their own, delegated; of other it is a directory in one
#                            of root's, as /home is on most machines
#   project PROVIDER USER    a subvolume or dataset in it, as whoever may makes one; its path is in $workspace

place() {
    local provider=$1 user=$2
    case $provider in
        git)
            folder=/home/$user/git
            [ "$user" != root ] || folder=/root/git
            mkdir -p "$folder"
            ;;
        btrfs)
            if ! findmnt -n /mnt/btrfs >/dev/null; then
                mkdir -p /mnt/btrfs
                mkfs.btrfs -q /dev/ah/a >/dev/null
                mount -o "${btrfs_options-user_subvol_rm_allowed}" /dev/ah/a /mnt/btrfs
            fi
            folder=/mnt/btrfs/$user
            if [ "$user" = other ]; then
                [ -e /mnt/btrfs/homes ] || btrfs -q subvolume create /mnt/btrfs/homes
                folder=/mnt/btrfs/homes/other
                mkdir -p "$folder"
            fi
            [ -e "$folder" ] || btrfs -q subvolume create "$folder"
            ;;
        zfs)
            if ! findmnt -n /mnt/zfs >/dev/null; then
                zpool create -f -o cachefile=none -o ashift=12 -O mountpoint=/mnt/zfs tank /dev/ah/b
            fi
            folder=/mnt/zfs/$user
            if [ "$user" = other ]; then
                [ -e /mnt/zfs/homes ] || zfs create tank/homes
                folder=/mnt/zfs/homes/other
                mkdir -p "$folder"
            fi
            if [ ! -e "$folder" ]; then
                zfs create "tank/$user"
                # As the page for ordinary users tells the administrator.
                [ "$user" = root ] || zfs allow "$user" snapshot,destroy,clone,create,mount,promote,rollback,hold,release,userprop,diff "tank/$user"
            fi
            ;;
    esac
    chown "$user" "$folder"
}

project() {
    local provider=$1 user=$2
    place "$provider" "$user"
    workspace=$folder/project
    [ ! -e "$workspace" ] || return 0
    case $provider in
        git) as "$user" mkdir "$workspace" ;;
        btrfs) as "$user" btrfs -q subvolume create "$workspace" ;;
        # An ordinary user cannot mount it.
        zfs)
            zfs create "tank/$user/project"
            chown "$user" "$workspace"
            ;;
    esac
}

# as USER COMMAND…: with nothing in the environment but what one has after logging in.
as() {
    local user=$1 home
    shift
    home=/home/$user
    [ "$user" != root ] || home=/root
    setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \
        env -i PATH="$PATH" HOME="$home" LANG=C.UTF-8 USER="$user" "$@"
}

# The privileged helper; 1 if it is not built. It lets other have root's subvolume or dataset captured, unless $ahd_config says else.
helper() {
    [ -x /ah/bin/ahd ] || return 1
    modprobe -a btrfs zfs
    mkdir -p /run/ahd /var/lib /etc/ah
    echo "${ahd_config-{\"allow-containing\": [\"other\"]\}}" >/etc/ah/ahd.conf
    /ah/bin/ahd --config /etc/ah/ahd.conf --provider-dir "$(readlink -f /ah/providers)" >/tmp/ahd.log 2>&1 &
    for _ in $(seq 100); do
        [ ! -S /run/ahd/ahd.sock ] || return 0
        sleep 0.1
    done
    echo "error: ahd does not listen" >&2
    cat /tmp/ahd.log >&2
    exit 1
}
