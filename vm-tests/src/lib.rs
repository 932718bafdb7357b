//! Our programs in a virtual machine with Debian's kernel, real ZFS and real Btrfs.
//!
//! `scripts/vm-guest` makes the guest (kernel, modules, userland) and `scripts/vm-test` calls everything in order. Here is the host's
//! side: [`cpio`] and [`payload`] pack what a run brings along, [`machine`] starts QEMU and hears it, [`disk`] is a disk that loses
//! what was not flushed when its power is cut, and [`cuts`] uses it on the workspaces that [`kinds`] lists. What runs inside is in `guest/`, in [`workload`] for the
//! power cuts and [`contract`] for the conformance suite.

pub mod contract;
pub mod cpio;
pub mod cuts;
pub mod disk;
pub mod kinds;
pub mod machine;
pub mod payload;
pub mod random;
pub mod record;
pub mod workload;
