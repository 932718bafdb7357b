// AgentFS: a copy-on-write filesystem in user space with instant, durable snapshots and branches. Its interface for C.
//
// Made from the Rust sources by cbindgen; do not edit. What is promised is in docs/agentfs.md.
//
// Outcomes. Functions return one of agentfs_code; AGENTFS_CODE_OK is 0. The last argument may point to an agentfs_failure
// of the caller's, which then says more; it may be null. Nothing is kept by thread, and there is nothing to free. After an error
// nothing was written where the answer belongs, but perhaps into a buffer, and the length with TOO_SMALL. Nothing ever unwinds
// out of a function.
//
// Arguments. A null pointer where one is needed, an unknown number, a flag that is not known and an empty name are answered
// with AGENTFS_CODE_INVALID. A pointer that is not null must point to what its type says; a handle must be open. That cannot be checked.
//
// Handles. A workspace is closed when all its views are closed. Any number of threads may use one handle at the same time, but not
// while it is being closed. Nothing waits for a callback: it may call any function here.
//
// Inodes. Functions that lead to an inode count that it is known, and as many counts are given back by agentfs_forget. A number is good
// for as long as it is counted; AGENTFS_ROOT always is. Numbers are the same in all branches and snapshots, and after a restart.
//
// Permissions are for the host to check: here they are kept, not judged.
//
// Structures have the sizes that are stated, on all 64-bit systems. Fields called reserved are zero, also in what is handed in.

#ifndef AGENTFS_H
#define AGENTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The version of this interface: the upper half changes when a program has to be compiled anew, the lower half when something
// was added.
#define AGENTFS_ABI_VERSION 65537

// `agentfs_setattr` sets `mode`.
#define AGENTFS_SET_MODE 1

// It sets `uid`.
#define AGENTFS_SET_UID 2

// It sets `gid`.
#define AGENTFS_SET_GID 4

// It sets the size: cuts, or fills up with zeros.
#define AGENTFS_SET_SIZE 8

// It sets `atime`.
#define AGENTFS_SET_ATIME 16

// It sets `mtime`.
#define AGENTFS_SET_MTIME 32

// It sets the time of access to the present one.
#define AGENTFS_SET_ATIME_NOW 64

// It sets the time of modification to the present one.
#define AGENTFS_SET_MTIME_NOW 128

// `agentfs_open`: although the lower directory is not there any more, or is another, as if everything had been removed from it.
#define AGENTFS_OPEN_WITHOUT_LOWER 1

// `agentfs_open`: nothing of the lower directory is kept behind bases that are taken; branches of them show what is done there.
#define AGENTFS_OPEN_WITHOUT_PINS 2

// The root directory's number: it need not be looked up, and is never forgotten.
#define AGENTFS_ROOT 1

// What a call came to. The numbers are the same on all systems and never get another meaning; later versions may have more.
typedef enum agentfs_code {
    // It was done.
    AGENTFS_CODE_OK = 0,
    // No such name, branch, snapshot or store.
    AGENTFS_CODE_NOT_FOUND = 1,
    // The name is taken.
    AGENTFS_CODE_EXISTS = 2,
    // A directory was needed.
    AGENTFS_CODE_NOT_DIRECTORY = 3,
    // Anything but a directory was needed.
    AGENTFS_CODE_IS_DIRECTORY = 4,
    // The directory holds something.
    AGENTFS_CODE_NOT_EMPTY = 5,
    // A null pointer, a number that means nothing here, or a request that makes no sense.
    AGENTFS_CODE_INVALID = 6,
    // A name of more than 255 bytes, or a link's target of more than 4095.
    AGENTFS_CODE_NAME_TOO_LONG = 7,
    // A change through the view of a snapshot, or one that was opened to read.
    AGENTFS_CODE_READ_ONLY = 8,
    // The disk is full, or the store's own limit is reached.
    AGENTFS_CODE_NO_SPACE = 9,
    // The kind of thing does not allow this (a hard link to a directory).
    AGENTFS_CODE_NOT_PERMITTED = 10,
    // No extended attribute of this name.
    AGENTFS_CODE_NO_ATTRIBUTE = 11,
    // Beyond the largest file, 2^62 bytes.
    AGENTFS_CODE_FILE_TOO_LARGE = 12,
    // An offset behind the last data, where a seek ends.
    AGENTFS_CODE_NO_DATA = 13,
    // Too many names of one file.
    AGENTFS_CODE_TOO_MANY_LINKS = 14,
    // A view, a child or another process holds it.
    AGENTFS_CODE_BUSY = 15,
    // An inode number that was forgotten, or never given out.
    AGENTFS_CODE_STALE = 16,
    // This filesystem, or this system, does not do that.
    AGENTFS_CODE_UNSUPPORTED = 17,
    // What the tree stood for is gone: the file below was changed by somebody else.
    AGENTFS_CODE_DATA_LOSS = 18,
    // The store itself is damaged.
    AGENTFS_CODE_CORRUPT = 19,
    // The store was written by a newer version.
    AGENTFS_CODE_NEWER_FORMAT = 20,
    // The lower directory is not the one that the store was made for.
    AGENTFS_CODE_OTHER_LOWER = 21,
    // The system said no: `system` says how.
    AGENTFS_CODE_IO = 22,
    // The buffer is too small for the whole value; `length` says what it takes.
    AGENTFS_CODE_TOO_SMALL = 23,
    // A fault in AgentFS itself: it gave up in the middle of the call.
    AGENTFS_CODE_INTERNAL = 24,
} agentfs_code;

// What an inode is.
typedef enum agentfs_kind {
    // A regular file.
    AGENTFS_KIND_FILE = 1,
    // A directory.
    AGENTFS_KIND_DIRECTORY = 2,
    // A symbolic link.
    AGENTFS_KIND_SYMLINK = 3,
    // A named pipe.
    AGENTFS_KIND_FIFO = 4,
    // A socket's name.
    AGENTFS_KIND_SOCKET = 5,
    // A character device.
    AGENTFS_KIND_CHAR_DEVICE = 6,
    // A block device.
    AGENTFS_KIND_BLOCK_DEVICE = 7,
} agentfs_kind;

// What a snapshot must survive from the moment it is reported.
typedef enum agentfs_class {
    // The death of any process.
    AGENTFS_CLASS_INSTANT = 1,
    // A power cut.
    AGENTFS_CLASS_DURABLE = 2,
} agentfs_class;

// How a branch's tree is opened.
typedef enum agentfs_access {
    // To read and write; one at a time of each branch.
    AGENTFS_ACCESS_WRITE = 1,
    // To read; any number, beside the one that writes.
    AGENTFS_ACCESS_READ = 2,
} agentfs_access;

// How `agentfs_rename` treats a name that is taken.
typedef enum agentfs_rename_how {
    // It is replaced.
    AGENTFS_RENAME_HOW_REPLACE = 1,
    // It is an error.
    AGENTFS_RENAME_HOW_NO_REPLACE = 2,
    // Both names change places.
    AGENTFS_RENAME_HOW_EXCHANGE = 3,
} agentfs_rename_how;

// What `agentfs_fallocate` does.
typedef enum agentfs_allocate {
    // Makes the file at least that long. Space is not set aside.
    AGENTFS_ALLOCATE_EXTEND = 1,
    // Nothing at all but the checks.
    AGENTFS_ALLOCATE_KEEP = 2,
    // A hole: reads as zeros, takes no space, the size is kept.
    AGENTFS_ALLOCATE_PUNCH = 3,
    // Zeros, and the file at least that long.
    AGENTFS_ALLOCATE_ZERO = 4,
} agentfs_allocate;

// What `agentfs_seek` looks for.
typedef enum agentfs_seek_what {
    // The next byte that may not be zero.
    AGENTFS_SEEK_WHAT_DATA = 1,
    // The next hole, or the end.
    AGENTFS_SEEK_WHAT_HOLE = 2,
} agentfs_seek_what;

// Whether an extended attribute may, must or must not be there before.
typedef enum agentfs_set_xattr {
    // It is made or replaced.
    AGENTFS_SET_XATTR_ANY = 1,
    // It must be new.
    AGENTFS_SET_XATTR_CREATE = 2,
    // It must be there.
    AGENTFS_SET_XATTR_REPLACE = 3,
} agentfs_set_xattr;

// A tree: a branch, or a snapshot.
typedef struct agentfs_view agentfs_view;

// An open store. One process has it at a time.
typedef struct agentfs_workspace agentfs_workspace;

// A byte string that the caller keeps: 16 bytes. Not ended by a NUL. With length 0 the pointer may be null.
typedef struct agentfs_bytes {
    // The first byte.
    const uint8_t *data;
    // How many there are.
    size_t length;
} agentfs_bytes;

// A point in time: 16 bytes.
typedef struct agentfs_time {
    // Seconds since 1970, which may be negative.
    int64_t seconds;
    // Nanoseconds after that, below 1,000,000,000.
    uint32_t nanoseconds;
    // Zero.
    uint32_t reserved;
} agentfs_time;

// What `stat` shows: 120 bytes.
typedef struct agentfs_attr {
    // The inode's number.
    uint64_t ino;
    // Bytes; of a link the length of its target.
    uint64_t size;
    // Units of 512 bytes that its content takes; an estimate.
    uint64_t blocks;
    // The device that a device node stands for, as `makedev` makes it.
    uint64_t rdev;
    // Last access. Reading does not move it.
    struct agentfs_time atime;
    // Last change of the content.
    struct agentfs_time mtime;
    // Last change of anything.
    struct agentfs_time ctime;
    // Birth; all zero if it is not known.
    struct agentfs_time btime;
    // One of `agentfs_kind`.
    uint32_t kind;
    // Permission bits, set-id and sticky included: the lower 12 bits.
    uint32_t mode;
    // Owner.
    uint32_t uid;
    // Group.
    uint32_t gid;
    // How many names it has.
    uint32_t nlink;
    // Zero.
    uint32_t reserved;
} agentfs_attr;

// What went wrong, in memory of the caller's: 256 bytes. Written by every call that is given one, also when it succeeds.
typedef struct agentfs_failure {
    // One of `agentfs_code`, as the call returned it.
    int32_t code;
    // The error number of this system that comes closest (`errno.h`); 0 if there was no error.
    int32_t system;
    // A sentence for people, UTF-8, cut if it is too long, always ended by a NUL.
    char message[248];
} agentfs_failure;

// What `agentfs_setattr` changes: 56 bytes. What has no bit in `set` stays.
typedef struct agentfs_set_attr {
    // Which of them, as a sum of AGENTFS_SET_….
    uint32_t set;
    // Permission bits.
    uint32_t mode;
    // Owner.
    uint32_t uid;
    // Group.
    uint32_t gid;
    // Bytes.
    uint64_t size;
    // Access.
    struct agentfs_time atime;
    // Modification.
    struct agentfs_time mtime;
} agentfs_set_attr;

// One name in a directory: 40 bytes.
typedef struct agentfs_entry {
    // Where to go on behind this entry: 3 or more, below 2^63, rising.
    uint64_t cookie;
    // The inode, as far as it is known without looking: `agentfs_lookup` is exact.
    uint64_t ino;
    // One of `agentfs_kind`.
    uint32_t kind;
    // Zero.
    uint32_t reserved;
    // Any bytes but `/` and NUL.
    struct agentfs_bytes name;
} agentfs_entry;

// Called for each name of a directory. What it is shown is there during the call only. False: no more. It may call any function of
// this interface, and must return: no exception, no longjmp.
typedef bool (*agentfs_on_entry)(void *context, const struct agentfs_entry *entry);

// Who makes a new inode and with which permissions: 12 bytes.
typedef struct agentfs_owner {
    // Permission bits, after the umask.
    uint32_t mode;
    // Owner.
    uint32_t uid;
    // Group.
    uint32_t gid;
} agentfs_owner;

// What the filesystem has left, in bytes and counts: 24 bytes.
typedef struct agentfs_stat_fs {
    // Size of the disk that the store is on, or the store's own limit.
    uint64_t total;
    // What can still be written.
    uint64_t free;
    // Inodes that can still be made.
    uint64_t free_inodes;
} agentfs_stat_fs;

// As agentfs_on_entry, for the name of each extended attribute, or for each path.
typedef bool (*agentfs_on_name)(void *context, struct agentfs_bytes name);

// How a store is opened: 16 bytes. All zero is the usual way.
typedef struct agentfs_options {
    // The most that contents of files may take in the store, in bytes; 0: what the disk has.
    uint64_t limit;
    // A sum of AGENTFS_OPEN_….
    uint32_t flags;
    // Zero.
    uint32_t reserved;
} agentfs_options;

// A snapshot as it is listed: 48 bytes.
typedef struct agentfs_snapshot_info {
    // Its number, never used again.
    uint64_t id;
    // When it was taken.
    struct agentfs_time time;
    // The branch that it is of, if `has_branch` is 1.
    uint32_t branch;
    // 1 if that branch is there still; 0 of a snapshot of the lower directory itself, too.
    uint32_t has_branch;
    // What it was called.
    struct agentfs_bytes label;
} agentfs_snapshot_info;

// As agentfs_on_entry, for each snapshot.
typedef bool (*agentfs_on_snapshot)(void *context, const struct agentfs_snapshot_info *snapshot);

// A branch as it is listed: 24 bytes.
typedef struct agentfs_branch_info {
    // Its number, never used again.
    uint32_t id;
    // Zero.
    uint32_t reserved;
    // What it was called.
    struct agentfs_bytes label;
} agentfs_branch_info;

// As agentfs_on_entry, for each branch.
typedef bool (*agentfs_on_branch)(void *context, const struct agentfs_branch_info *branch);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version that the library has; a program compares its upper half with that of AGENTFS_ABI_VERSION.
uint32_t agentfs_abi_version(void);

// A sentence for a code, UTF-8, ended by a NUL, there for as long as the program; null for a number that is no code.
const char *agentfs_code_text(int32_t code);

// What a name in a directory leads to. Counts that it is known.
int32_t agentfs_lookup(struct agentfs_view *view,
                       uint64_t parent,
                       struct agentfs_bytes name,
                       struct agentfs_attr *attr,
                       struct agentfs_failure *failure);

// Gives back `count` of the counts by which an inode is known. A file without a name goes with the last one.
int32_t agentfs_forget(struct agentfs_view *view, uint64_t ino, uint64_t count, struct agentfs_failure *failure);

// An inode's attributes.
int32_t agentfs_getattr(struct agentfs_view *view,
                        uint64_t ino,
                        struct agentfs_attr *attr,
                        struct agentfs_failure *failure);

// Changes attributes, and says what they are then. `attr` may be null.
int32_t agentfs_setattr(struct agentfs_view *view,
                        uint64_t ino,
                        const struct agentfs_set_attr *set,
                        struct agentfs_attr *attr,
                        struct agentfs_failure *failure);

// Shows the names in a directory, without `.` and `..`, by rising cookie, those behind the cookie `after`; 0: all. A cookie depends on
// the name alone as a rule, so that going on behind one in a later call misses nothing that was there all the time and shows nothing twice. Costs the
// directory each time.
int32_t agentfs_readdir(struct agentfs_view *view,
                        uint64_t directory,
                        uint64_t after,
                        agentfs_on_entry show,
                        void *context,
                        struct agentfs_failure *failure);

// Where a symbolic link points. `length` is what it takes; TOO_SMALL if that is more than `capacity`.
int32_t agentfs_readlink(struct agentfs_view *view,
                         uint64_t ino,
                         uint8_t *buffer,
                         size_t capacity,
                         size_t *length,
                         struct agentfs_failure *failure);

// Makes an empty file, a directory, a pipe, a socket's name or a device node (`rdev` as `makedev` makes it, else 0). `kind`: one of
// agentfs_kind but a link. Counts that it is known.
int32_t agentfs_mknod(struct agentfs_view *view,
                      uint64_t parent,
                      struct agentfs_bytes name,
                      uint32_t kind,
                      struct agentfs_owner owner,
                      uint64_t rdev,
                      struct agentfs_attr *attr,
                      struct agentfs_failure *failure);

// Makes a symbolic link. Counts that it is known.
int32_t agentfs_symlink(struct agentfs_view *view,
                        uint64_t parent,
                        struct agentfs_bytes name,
                        struct agentfs_bytes target,
                        struct agentfs_owner owner,
                        struct agentfs_attr *attr,
                        struct agentfs_failure *failure);

// A regular file without a name, which goes when it is forgotten unless `agentfs_link` gives it one. Counts that it is known.
int32_t agentfs_tmpfile(struct agentfs_view *view,
                        struct agentfs_owner owner,
                        struct agentfs_attr *attr,
                        struct agentfs_failure *failure);

// Gives a file one more name. Counts that it is known.
int32_t agentfs_link(struct agentfs_view *view,
                     uint64_t ino,
                     uint64_t parent,
                     struct agentfs_bytes name,
                     struct agentfs_attr *attr,
                     struct agentfs_failure *failure);

// Removes a name of anything but a directory. What was its last name leaves a file that lives until it is forgotten.
int32_t agentfs_unlink(struct agentfs_view *view,
                       uint64_t parent,
                       struct agentfs_bytes name,
                       struct agentfs_failure *failure);

// Removes an empty directory.
int32_t agentfs_rmdir(struct agentfs_view *view,
                      uint64_t parent,
                      struct agentfs_bytes name,
                      struct agentfs_failure *failure);

// Renames in one step. `how`: one of agentfs_rename. A directory can take the place of an empty directory only, and cannot go into
// itself. Inodes stay what they are.
int32_t agentfs_rename(struct agentfs_view *view,
                       uint64_t parent,
                       struct agentfs_bytes name,
                       uint64_t new_parent,
                       struct agentfs_bytes new_name,
                       uint32_t how,
                       struct agentfs_failure *failure);

// Reads up to `capacity` bytes. `length` is how many; fewer only at the end. Of more than 1 MiB, parts may be of different moments.
int32_t agentfs_read(struct agentfs_view *view,
                     uint64_t ino,
                     uint64_t offset,
                     uint8_t *buffer,
                     size_t capacity,
                     size_t *length,
                     struct agentfs_failure *failure);

// Writes all of the bytes, making the file longer if they reach beyond its end.
int32_t agentfs_write(struct agentfs_view *view,
                      uint64_t ino,
                      uint64_t offset,
                      struct agentfs_bytes bytes,
                      struct agentfs_failure *failure);

// Sets a range's space aside, or makes a hole. `how`: one of agentfs_allocate.
int32_t agentfs_fallocate(struct agentfs_view *view,
                          uint64_t ino,
                          uint64_t offset,
                          uint64_t length,
                          uint32_t how,
                          struct agentfs_failure *failure);

// Where the next data, or the next hole, begins at or behind an offset. `what`: one of agentfs_seek.
int32_t agentfs_seek(struct agentfs_view *view,
                     uint64_t ino,
                     uint64_t offset,
                     uint32_t what,
                     uint64_t *found,
                     struct agentfs_failure *failure);

// Waits until what was written is on the disk. So is everything else that was changed before the call.
int32_t agentfs_fsync(struct agentfs_view *view, uint64_t ino, struct agentfs_failure *failure);

// What the disk under the store, or the store's limit, has left.
int32_t agentfs_statfs(struct agentfs_view *view, struct agentfs_stat_fs *stat, struct agentfs_failure *failure);

// The value of an extended attribute. `length` is what it takes; TOO_SMALL if that is more than `capacity`.
int32_t agentfs_getxattr(struct agentfs_view *view,
                         uint64_t ino,
                         struct agentfs_bytes name,
                         uint8_t *buffer,
                         size_t capacity,
                         size_t *length,
                         struct agentfs_failure *failure);

// Sets an extended attribute. `how`: one of agentfs_set_xattr. Names are any bytes but NUL, up to 255; values up to 64 KiB.
int32_t agentfs_setxattr(struct agentfs_view *view,
                         uint64_t ino,
                         struct agentfs_bytes name,
                         struct agentfs_bytes value,
                         uint32_t how,
                         struct agentfs_failure *failure);

// Shows the names of an inode's extended attributes.
int32_t agentfs_listxattr(struct agentfs_view *view,
                          uint64_t ino,
                          agentfs_on_name show,
                          void *context,
                          struct agentfs_failure *failure);

// Removes an extended attribute.
int32_t agentfs_removexattr(struct agentfs_view *view,
                            uint64_t ino,
                            struct agentfs_bytes name,
                            struct agentfs_failure *failure);

// Makes an empty store in the directory `store`, which is made too, for a lower directory. EXISTS if there is one. Paths are
// bytes, as the system has them.
int32_t agentfs_create(struct agentfs_bytes store,
                       struct agentfs_bytes lower,
                       struct agentfs_failure *failure);

// Opens a store. `options` may be null. NOT_FOUND: no store; BUSY: open elsewhere; also NEWER_FORMAT, OTHER_LOWER, CORRUPT.
// After a crash this takes a time that does not grow with the store.
int32_t agentfs_open(struct agentfs_bytes store,
                     struct agentfs_bytes lower,
                     const struct agentfs_options *options,
                     struct agentfs_workspace **workspace,
                     struct agentfs_failure *failure);

// Takes everything to the disk and closes the store. BUSY as long as there is a view: nothing happens then. With any other answer the
// handle is gone; an error says that what was changed last may be lost. Not at the same time as any other call with this handle.
int32_t agentfs_close(struct agentfs_workspace *workspace,
                      struct agentfs_failure *failure);

// A snapshot of the lower directory as it is now; nothing is read or copied. Takes up to 10 ms, for a tick of the clock; a second
// where files bear whole seconds. A label is any bytes. Behind it what is below is kept for its branches, copied where the disk
// shares no contents between files, unless AGENTFS_OPEN_WITHOUT_PINS was said.
int32_t agentfs_base(struct agentfs_workspace *workspace,
                     struct agentfs_bytes label,
                     uint64_t *snapshot,
                     struct agentfs_failure *failure);

// A branch that begins at a snapshot, any number of times, at a cost that depends on nothing.
int32_t agentfs_branch(struct agentfs_workspace *workspace,
                       uint64_t from,
                       struct agentfs_bytes label,
                       uint32_t *branch,
                       struct agentfs_failure *failure);

// A snapshot of a branch. Every change that had returned before the call is in it, none that begins after its return is, and a
// change that runs meanwhile is in it wholly or not at all. After an error there is none. `class_`: one of agentfs_class.
int32_t agentfs_snapshot(struct agentfs_workspace *workspace,
                         uint32_t branch,
                         struct agentfs_bytes label,
                         uint32_t class_,
                         uint64_t *snapshot,
                         struct agentfs_failure *failure);

// Shows all snapshots, oldest first.
int32_t agentfs_snapshots(struct agentfs_workspace *workspace,
                          agentfs_on_snapshot show,
                          void *context,
                          struct agentfs_failure *failure);

// Shows all branches, oldest first.
int32_t agentfs_branches(struct agentfs_workspace *workspace,
                         agentfs_on_branch show,
                         void *context,
                         struct agentfs_failure *failure);

// Shows what somebody was found to have changed, made or removed below since the branch began, of what the branch reads there still: paths
// below the lower directory. The branch shows it as it is now, its snapshots cannot.
int32_t agentfs_changed_below(struct agentfs_workspace *workspace,
                              uint32_t branch,
                              agentfs_on_name show,
                              void *context,
                              struct agentfs_failure *failure);

// Removes a snapshot. Branches that grew from it are not harmed. Its space comes back in the background. BUSY as long as a view of it
// is open.
int32_t agentfs_delete_snapshot(struct agentfs_workspace *workspace,
                                uint64_t snapshot,
                                struct agentfs_failure *failure);

// Removes a branch; its snapshots stay. BUSY as long as a view of it is open.
int32_t agentfs_delete_branch(struct agentfs_workspace *workspace, uint32_t branch, struct agentfs_failure *failure);

// Takes everything that was changed before this call to the disk.
int32_t agentfs_sync(struct agentfs_workspace *workspace, struct agentfs_failure *failure);

// A branch's tree. `access`: one of agentfs_access; BUSY if it is open to write already.
int32_t agentfs_view_branch(struct agentfs_workspace *workspace,
                            uint32_t branch,
                            uint32_t access,
                            struct agentfs_view **view,
                            struct agentfs_failure *failure);

// A snapshot's tree, to read.
int32_t agentfs_view_snapshot(struct agentfs_workspace *workspace,
                              uint64_t snapshot,
                              struct agentfs_view **view,
                              struct agentfs_failure *failure);

// Closes a tree: all inodes are forgotten. Null is nothing to close. Not at the same time as any other call with this handle.
void agentfs_view_close(struct agentfs_view *view);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AGENTFS_H */
