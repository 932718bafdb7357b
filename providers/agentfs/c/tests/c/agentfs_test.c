// AgentFS as a C program uses it: over a lower directory that tests/c.rs makes (a file "below" with 3 MiB of 'b', a directory
// "folder" with a file "inner"). Usage: agentfs_test STORE LOWER create|reopen.
// What is wrong is said on stderr, and it ends with 1.

#include "agentfs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(agentfs_bytes) == 16, "as the header says");
_Static_assert(sizeof(agentfs_failure) == 256, "as the header says");
_Static_assert(sizeof(agentfs_time) == 16, "as the header says");
_Static_assert(sizeof(agentfs_attr) == 120, "as the header says");
_Static_assert(sizeof(agentfs_owner) == 12, "as the header says");
_Static_assert(sizeof(agentfs_set_attr) == 56, "as the header says");
_Static_assert(sizeof(agentfs_entry) == 40, "as the header says");
_Static_assert(sizeof(agentfs_stat_fs) == 24, "as the header says");
_Static_assert(sizeof(agentfs_snapshot_info) == 48, "as the header says");
_Static_assert(sizeof(agentfs_branch_info) == 24, "as the header says");
_Static_assert(sizeof(agentfs_options) == 16, "as the header says");

#define MIB ((size_t)1 << 20)

static agentfs_failure failure;

static void fail(int line, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    fprintf(stderr, "line %d: ", line);
    vfprintf(stderr, what, arguments);
    fprintf(stderr, " (last: %d, %d, \"%s\")\n", failure.code, failure.system, failure.message);
    va_end(arguments);
    exit(1);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail(__LINE__, "%s", #condition);                                                                          \
    } while (0)

// The call ends with this code, says the same in `failure`, and has words for it unless it is OK.
#define EXPECT(expected, call)                                                                                         \
    do {                                                                                                               \
        memset(&failure, 0x55, sizeof failure);                                                                        \
        int32_t code_ = (call);                                                                                        \
        failure.message[sizeof failure.message - 1] = 0;                                                               \
        if (code_ != (int32_t)(expected))                                                                              \
            fail(__LINE__, "%s: %d, not %s", #call, code_, #expected);                                                 \
        CHECK(failure.code == code_ && (code_ == 0) == (failure.message[0] == 0));                                     \
        CHECK((code_ == 0) == (failure.system == 0));                                                                  \
    } while (0)
#define OK(call) EXPECT(AGENTFS_CODE_OK, call)

static agentfs_bytes bytes(const char *text) {
    return (agentfs_bytes){(const uint8_t *)text, strlen(text)};
}

static const agentfs_owner me = {0644, 1000, 100};

static uint64_t look(agentfs_view *view, uint64_t parent, const char *name) {
    agentfs_attr attr;
    OK(agentfs_lookup(view, parent, bytes(name), &attr, &failure));
    return attr.ino;
}

static uint64_t make(agentfs_view *view, uint64_t parent, const char *name, const char *content) {
    agentfs_attr attr;
    OK(agentfs_mknod(view, parent, bytes(name), AGENTFS_KIND_FILE, me, 0, &attr, &failure));
    CHECK(attr.kind == AGENTFS_KIND_FILE && attr.mode == 0644 && attr.uid == 1000 && attr.gid == 100);
    CHECK(attr.nlink == 1 && attr.size == 0 && attr.reserved == 0);
    OK(agentfs_write(view, attr.ino, 0, bytes(content), &failure));
    return attr.ino;
}

static bool holds(agentfs_view *view, uint64_t ino, const char *content) {
    uint8_t buffer[64];
    size_t length = 99;
    OK(agentfs_read(view, ino, 0, buffer, sizeof buffer, &length, &failure));
    return length == strlen(content) && memcmp(buffer, content, length) == 0;
}

// What is in a tree, in one line: "name=kind:size ", directories with their contents in brackets.
struct drawing {
    agentfs_view *view;
    uint64_t directory;
    size_t count;
    uint64_t last;
    char text[1024];
};

static bool draw(void *context, const agentfs_entry *entry);

static void describe(struct drawing *drawing, agentfs_view *view, uint64_t directory) {
    memset(drawing, 0, sizeof *drawing);
    drawing->view = view;
    drawing->directory = directory;
    OK(agentfs_readdir(view, directory, 0, draw, drawing, &failure));
}

static bool draw(void *context, const agentfs_entry *entry) {
    struct drawing *drawing = context;
    CHECK(entry->cookie > drawing->last && entry->reserved == 0);
    drawing->last = entry->cookie;
    drawing->count++;
    agentfs_attr attr;
    // Within a call: that is allowed.
    OK(agentfs_lookup(drawing->view, drawing->directory, entry->name, &attr, &failure));
    CHECK(attr.kind == entry->kind);
    size_t used = strlen(drawing->text);
    snprintf(drawing->text + used, sizeof drawing->text - used, "%.*s=%u:%llu ", (int)entry->name.length,
             (const char *)entry->name.data, (unsigned)attr.kind,
             (unsigned long long)(attr.kind == AGENTFS_KIND_FILE ? attr.size : 0));
    if (attr.kind == AGENTFS_KIND_DIRECTORY) {
        struct drawing inner;
        describe(&inner, drawing->view, attr.ino);
        used = strlen(drawing->text);
        snprintf(drawing->text + used, sizeof drawing->text - used, "[%.900s] ", inner.text);
    }
    OK(agentfs_forget(drawing->view, attr.ino, 1, &failure));
    return true;
}

static bool first_only(void *context, const agentfs_entry *entry) {
    *(uint64_t *)context = entry->cookie;
    return false;
}

static bool count_entry(void *context, const agentfs_entry *entry) {
    (void)entry;
    ++*(size_t *)context;
    return true;
}

static bool count_name(void *context, agentfs_bytes name) {
    CHECK(name.length == 6 && memcmp(name.data, "user.a", 6) == 0);
    ++*(size_t *)context;
    return true;
}

static bool collect_snapshot(void *context, const agentfs_snapshot_info *info) {
    char *text = context;
    size_t used = strlen(text);
    CHECK(info->time.seconds > 0 && info->time.nanoseconds < 1000000000);
    snprintf(text + used, 256 - used, "%.*s/%u ", (int)info->label.length, (const char *)info->label.data,
             info->has_branch);
    return true;
}

static bool collect_branch(void *context, const agentfs_branch_info *info) {
    char *text = context;
    size_t used = strlen(text);
    snprintf(text + used, 256 - used, "%.*s ", (int)info->label.length, (const char *)info->label.data);
    return true;
}

static bool find_branch(void *context, const agentfs_branch_info *info) {
    *(uint32_t *)context = info->id;
    return false;
}

static bool find_snapshot(void *context, const agentfs_snapshot_info *info) {
    if (info->label.length == 6 && memcmp(info->label.data, "second", 6) == 0)
        *(uint64_t *)context = info->id;
    return true;
}

static bool count_below(void *context, agentfs_bytes path) {
    CHECK((path.length == 4 && memcmp(path.data, "came", 4) == 0) ||
          (path.length == 5 && memcmp(path.data, "below", 5) == 0));
    ++*(size_t *)context;
    return true;
}

static const char *snapshots(agentfs_workspace *workspace) {
    static char text[256];
    text[0] = 0;
    OK(agentfs_snapshots(workspace, collect_snapshot, text, &failure));
    return text;
}

static const char *branches(agentfs_workspace *workspace) {
    static char text[256];
    text[0] = 0;
    OK(agentfs_branches(workspace, collect_branch, text, &failure));
    return text;
}

// Files, names, attributes; what is there then is what `reopen` finds.
static void work(agentfs_view *view) {
    agentfs_attr attr, again;
    size_t length = 0;

    // What is below shines through, and is read in parts of more than a megabyte.
    uint64_t below = look(view, AGENTFS_ROOT, "below");
    uint8_t *large = malloc(4 * MIB);
    OK(agentfs_read(view, below, 5, large, 4 * MIB, &length, &failure));
    CHECK(length == 3 * MIB - 5 && large[0] == 'b' && large[length - 1] == 'b');
    OK(agentfs_write(view, below, 2 * MIB, bytes("here"), &failure));
    OK(agentfs_read(view, below, 2 * MIB - 1, large, 6, &length, &failure));
    CHECK(length == 6 && memcmp(large, "bhereb", 6) == 0);
    OK(agentfs_read(view, below, 9 * MIB, large, 6, &length, &failure));
    CHECK(length == 0);
    OK(agentfs_read(view, below, UINT64_MAX, large, 6, &length, &failure));
    CHECK(length == 0);
    free(large);

    // Attributes: what has no bit stays.
    uint64_t file = make(view, AGENTFS_ROOT, "file", "content");
    agentfs_set_attr set = {
        .set = AGENTFS_SET_MODE | AGENTFS_SET_MTIME, .mode = 0600, .uid = 7, .mtime = {-5, 999999999, 0}};
    OK(agentfs_setattr(view, file, &set, &attr, &failure));
    CHECK(attr.mode == 0600 && attr.uid == 1000 && attr.mtime.seconds == -5 && attr.mtime.nanoseconds == 999999999);
    set = (agentfs_set_attr){.set = AGENTFS_SET_SIZE | AGENTFS_SET_UID | AGENTFS_SET_MTIME_NOW, .size = 4, .uid = 7};
    OK(agentfs_setattr(view, file, &set, NULL, &failure));
    OK(agentfs_getattr(view, file, &attr, &failure));
    CHECK(attr.size == 4 && attr.uid == 7 && attr.mode == 0600 && attr.mtime.seconds > 0);
    CHECK(holds(view, file, "cont"));

    // Links of both kinds, and where one points.
    OK(agentfs_link(view, file, AGENTFS_ROOT, bytes("second"), &attr, &failure));
    CHECK(attr.ino == file && attr.nlink == 2);
    OK(agentfs_symlink(view, AGENTFS_ROOT, bytes("link"), bytes("folder/inner"), me, &attr, &failure));
    CHECK(attr.kind == AGENTFS_KIND_SYMLINK && attr.size == 12);
    uint8_t target[12];
    OK(agentfs_readlink(view, attr.ino, target, sizeof target, &length, &failure));
    CHECK(length == 12 && memcmp(target, "folder/inner", 12) == 0);
    EXPECT(AGENTFS_CODE_TOO_SMALL, agentfs_readlink(view, attr.ino, target, 11, &length, &failure));
    EXPECT(AGENTFS_CODE_TOO_SMALL, agentfs_readlink(view, attr.ino, NULL, 0, &length, &failure));
    CHECK(length == 12);
    EXPECT(AGENTFS_CODE_INVALID, agentfs_readlink(view, file, target, sizeof target, &length, &failure));

    // Nodes and directories.
    OK(agentfs_mknod(view, AGENTFS_ROOT, bytes("device"), AGENTFS_KIND_CHAR_DEVICE, me, 0x0103, &attr, &failure));
    CHECK(attr.rdev == 0x0103 && attr.kind == AGENTFS_KIND_CHAR_DEVICE);
    OK(agentfs_unlink(view, AGENTFS_ROOT, bytes("device"), &failure));
    OK(agentfs_mknod(view, AGENTFS_ROOT, bytes("made"), AGENTFS_KIND_DIRECTORY, me, 0, &attr, &failure));
    CHECK(attr.kind == AGENTFS_KIND_DIRECTORY && attr.nlink == 2);
    EXPECT(AGENTFS_CODE_IS_DIRECTORY, agentfs_unlink(view, AGENTFS_ROOT, bytes("made"), &failure));
    OK(agentfs_rmdir(view, AGENTFS_ROOT, bytes("made"), &failure));
    EXPECT(AGENTFS_CODE_NOT_DIRECTORY, agentfs_rmdir(view, AGENTFS_ROOT, bytes("file"), &failure));

    // Renaming, each way.
    make(view, AGENTFS_ROOT, "one", "1");
    uint64_t two = make(view, AGENTFS_ROOT, "two", "2");
    EXPECT(AGENTFS_CODE_EXISTS, agentfs_rename(view, AGENTFS_ROOT, bytes("one"), AGENTFS_ROOT, bytes("two"),
                                               AGENTFS_RENAME_HOW_NO_REPLACE, &failure));
    OK(agentfs_rename(view, AGENTFS_ROOT, bytes("one"), AGENTFS_ROOT, bytes("two"), AGENTFS_RENAME_HOW_EXCHANGE,
                      &failure));
    CHECK(look(view, AGENTFS_ROOT, "one") == two);
    OK(agentfs_rename(view, AGENTFS_ROOT, bytes("one"), look(view, AGENTFS_ROOT, "folder"), bytes("moved"),
                      AGENTFS_RENAME_HOW_REPLACE, &failure));
    CHECK(holds(view, look(view, look(view, AGENTFS_ROOT, "folder"), "moved"), "2"));
    EXPECT(AGENTFS_CODE_NOT_EMPTY, agentfs_rmdir(view, AGENTFS_ROOT, bytes("folder"), &failure));

    // A file without a name lives until it is forgotten.
    OK(agentfs_tmpfile(view, me, &attr, &failure));
    OK(agentfs_write(view, attr.ino, 0, bytes("nameless"), &failure));
    CHECK(holds(view, attr.ino, "nameless"));
    OK(agentfs_forget(view, attr.ino, 1, &failure));
    EXPECT(AGENTFS_CODE_STALE, agentfs_getattr(view, attr.ino, &again, &failure));

    // Extended attributes.
    OK(agentfs_setxattr(view, file, bytes("user.a"), bytes("value"), AGENTFS_SET_XATTR_CREATE, &failure));
    EXPECT(AGENTFS_CODE_EXISTS,
           agentfs_setxattr(view, file, bytes("user.a"), bytes("x"), AGENTFS_SET_XATTR_CREATE, &failure));
    EXPECT(AGENTFS_CODE_NO_ATTRIBUTE,
           agentfs_setxattr(view, file, bytes("user.b"), bytes("x"), AGENTFS_SET_XATTR_REPLACE, &failure));
    uint8_t value[8];
    OK(agentfs_getxattr(view, file, bytes("user.a"), value, sizeof value, &length, &failure));
    CHECK(length == 5 && memcmp(value, "value", 5) == 0);
    length = 0;
    EXPECT(AGENTFS_CODE_TOO_SMALL, agentfs_getxattr(view, file, bytes("user.a"), NULL, 0, &length, &failure));
    CHECK(length == 5);
    size_t names = 0;
    OK(agentfs_listxattr(view, file, count_name, &names, &failure));
    CHECK(names == 1);
    OK(agentfs_removexattr(view, file, bytes("user.a"), &failure));
    EXPECT(AGENTFS_CODE_NO_ATTRIBUTE,
           agentfs_getxattr(view, file, bytes("user.a"), value, sizeof value, &length, &failure));

    // Holes.
    uint64_t sparse = make(view, AGENTFS_ROOT, "sparse", "");
    uint64_t at = 0;
    OK(agentfs_fallocate(view, sparse, 0, 8 * MIB, AGENTFS_ALLOCATE_EXTEND, &failure));
    OK(agentfs_write(view, sparse, 4 * MIB, bytes("x"), &failure));
    OK(agentfs_seek(view, sparse, 0, AGENTFS_SEEK_WHAT_DATA, &at, &failure));
    CHECK(at == 4 * MIB);
    OK(agentfs_seek(view, sparse, at, AGENTFS_SEEK_WHAT_HOLE, &at, &failure));
    CHECK(at == 4 * MIB + 4096);
    EXPECT(AGENTFS_CODE_NO_DATA, agentfs_seek(view, sparse, at, AGENTFS_SEEK_WHAT_DATA, &at, &failure));
    OK(agentfs_fallocate(view, sparse, 4 * MIB, 4096, AGENTFS_ALLOCATE_PUNCH, &failure));
    EXPECT(AGENTFS_CODE_NO_DATA, agentfs_seek(view, sparse, 0, AGENTFS_SEEK_WHAT_DATA, &at, &failure));
    OK(agentfs_fsync(view, sparse, &failure));

    agentfs_stat_fs stat = {0};
    OK(agentfs_statfs(view, &stat, &failure));
    CHECK(stat.total == 64 * MIB && stat.free < stat.total && stat.free > 32 * MIB);

    // Listing goes on behind a cookie.
    size_t all = 0, rest = 0;
    uint64_t cookie = 0;
    OK(agentfs_readdir(view, AGENTFS_ROOT, 0, count_entry, &all, &failure));
    OK(agentfs_readdir(view, AGENTFS_ROOT, 0, first_only, &cookie, &failure));
    OK(agentfs_readdir(view, AGENTFS_ROOT, cookie, count_entry, &rest, &failure));
    CHECK(all == 7 && rest == 6);
}

// What must be answered, and never done.
static void refuse(agentfs_workspace *workspace, agentfs_view *view, uint32_t branch) {
    agentfs_attr attr;
    agentfs_view *other = NULL;
    size_t length = 77;
    uint8_t buffer[4];
    uint64_t id = 77, at = 77;
    const agentfs_bytes null = {NULL, 5};

    // Null pointers.
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(NULL, AGENTFS_ROOT, bytes("file"), &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(view, AGENTFS_ROOT, null, &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(view, AGENTFS_ROOT, bytes("file"), NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID,
           agentfs_mknod(view, AGENTFS_ROOT, bytes("lost"), AGENTFS_KIND_FILE, me, 0, NULL, &failure));
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_lookup(view, AGENTFS_ROOT, bytes("lost"), &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_setattr(view, AGENTFS_ROOT, NULL, &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_read(view, AGENTFS_ROOT, 0, NULL, 4, &length, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_read(view, AGENTFS_ROOT, 0, buffer, 4, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_readdir(view, AGENTFS_ROOT, 0, NULL, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_statfs(view, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_snapshots(NULL, collect_snapshot, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID,
           agentfs_snapshot(workspace, branch, bytes("x"), AGENTFS_CLASS_INSTANT, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_view_branch(workspace, branch, AGENTFS_ACCESS_READ, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_open(bytes("x"), bytes("y"), NULL, NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_close(NULL, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_create(null, bytes("y"), &failure));
    agentfs_view_close(NULL);
    CHECK(agentfs_getattr(NULL, AGENTFS_ROOT, &attr, NULL) == AGENTFS_CODE_INVALID);

    // Numbers that mean nothing.
    EXPECT(AGENTFS_CODE_INVALID, agentfs_mknod(view, AGENTFS_ROOT, bytes("x"), 99, me, 0, &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_mknod(view, AGENTFS_ROOT, bytes("x"), 0, me, 0, &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID,
           agentfs_mknod(view, AGENTFS_ROOT, bytes("x"), AGENTFS_KIND_SYMLINK, me, 0, &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID,
           agentfs_rename(view, AGENTFS_ROOT, bytes("file"), AGENTFS_ROOT, bytes("x"), 0, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_fallocate(view, AGENTFS_ROOT, 0, 1, UINT32_MAX, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_seek(view, AGENTFS_ROOT, 0, 3, &at, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_setxattr(view, AGENTFS_ROOT, bytes("user.x"), bytes("x"), 4, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_snapshot(workspace, branch, bytes("x"), 3, &id, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_view_branch(workspace, branch, 0, &other, &failure));
    agentfs_set_attr set = {.set = 1 << 8};
    EXPECT(AGENTFS_CODE_INVALID, agentfs_setattr(view, AGENTFS_ROOT, &set, NULL, &failure));
    set = (agentfs_set_attr){.set = AGENTFS_SET_MTIME, .mtime = {0, 1000000000, 0}};
    EXPECT(AGENTFS_CODE_INVALID, agentfs_setattr(view, AGENTFS_ROOT, &set, NULL, &failure));
    set = (agentfs_set_attr){.set = AGENTFS_SET_MTIME | AGENTFS_SET_MTIME_NOW};
    EXPECT(AGENTFS_CODE_INVALID, agentfs_setattr(view, AGENTFS_ROOT, &set, NULL, &failure));

    // Names.
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(view, AGENTFS_ROOT, bytes(""), &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(view, AGENTFS_ROOT, (agentfs_bytes){NULL, 0}, &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(view, AGENTFS_ROOT, bytes(".."), &attr, &failure));
    EXPECT(AGENTFS_CODE_INVALID, agentfs_lookup(view, AGENTFS_ROOT, bytes("a/b"), &attr, &failure));
    char name[257] = {0};
    memset(name, 'n', 256);
    EXPECT(AGENTFS_CODE_NAME_TOO_LONG,
           agentfs_mknod(view, AGENTFS_ROOT, bytes(name), AGENTFS_KIND_FILE, me, 0, &attr, &failure));

    // What is not there, and what is there twice.
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_lookup(view, AGENTFS_ROOT, bytes("nothing"), &attr, &failure));
    EXPECT(AGENTFS_CODE_STALE, agentfs_getattr(view, 123456, &attr, &failure));
    EXPECT(AGENTFS_CODE_EXISTS,
           agentfs_mknod(view, AGENTFS_ROOT, bytes("file"), AGENTFS_KIND_FILE, me, 0, &attr, &failure));
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_view_snapshot(workspace, 4711, &other, &failure));
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_view_branch(workspace, 4711, AGENTFS_ACCESS_WRITE, &other, &failure));
    EXPECT(AGENTFS_CODE_BUSY, agentfs_view_branch(workspace, branch, AGENTFS_ACCESS_WRITE, &other, &failure));
    EXPECT(AGENTFS_CODE_BUSY, agentfs_delete_branch(workspace, branch, &failure));
    EXPECT(AGENTFS_CODE_BUSY, agentfs_close(workspace, &failure));
    CHECK(other == NULL && length == 77 && id == 77 && at == 77);
}

static void create(agentfs_bytes store, agentfs_bytes lower) {
    agentfs_workspace *workspace = NULL, *twice = NULL;
    agentfs_view *view = NULL, *old = NULL, *beside = NULL;
    uint64_t base = 0, first = 0, second = 0;
    uint32_t branch = 0, child = 0;
    agentfs_options options = {.limit = 64 * MIB};

    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_open(store, lower, NULL, &workspace, &failure));
    OK(agentfs_create(store, lower, &failure));
    EXPECT(AGENTFS_CODE_EXISTS, agentfs_create(store, lower, &failure));
    options.flags = 1u << 9;
    EXPECT(AGENTFS_CODE_INVALID, agentfs_open(store, lower, &options, &workspace, &failure));
    options.flags = AGENTFS_OPEN_WITHOUT_PINS;
    OK(agentfs_open(store, lower, &options, &workspace, &failure));
    EXPECT(AGENTFS_CODE_BUSY, agentfs_open(store, lower, NULL, &twice, &failure));

    OK(agentfs_base(workspace, bytes("base"), &base, &failure));
    OK(agentfs_branch(workspace, base, bytes("branch"), &branch, &failure));
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_branch(workspace, 4711, bytes("none"), &child, &failure));
    OK(agentfs_view_branch(workspace, branch, AGENTFS_ACCESS_WRITE, &view, &failure));

    uint64_t notes = make(view, AGENTFS_ROOT, "notes", "first");
    OK(agentfs_snapshot(workspace, branch, bytes("first"), AGENTFS_CLASS_INSTANT, &first, &failure));
    OK(agentfs_write(view, notes, 0, bytes("later"), &failure));
    OK(agentfs_unlink(view, look(view, AGENTFS_ROOT, "folder"), bytes("inner"), &failure));
    OK(agentfs_snapshot(workspace, branch, bytes("second"), AGENTFS_CLASS_DURABLE, &second, &failure));
    OK(agentfs_unlink(view, AGENTFS_ROOT, bytes("notes"), &failure));
    CHECK(holds(view, notes, "later"));
    OK(agentfs_forget(view, notes, 1, &failure));
    EXPECT(AGENTFS_CODE_STALE, agentfs_write(view, notes, 0, bytes("gone"), &failure));
    work(view);
    refuse(workspace, view, branch);

    // Each snapshot is as it was, whatever was done since.
    struct drawing then, now;
    OK(agentfs_view_snapshot(workspace, first, &old, &failure));
    describe(&then, old, AGENTFS_ROOT);
    CHECK(then.count == 3 && strstr(then.text, "folder=2:0 [inner=1:5 ]") && strstr(then.text, "notes=1:5"));
    CHECK(holds(old, look(old, AGENTFS_ROOT, "notes"), "first"));
    agentfs_attr attr;
    EXPECT(AGENTFS_CODE_READ_ONLY,
           agentfs_mknod(old, AGENTFS_ROOT, bytes("x"), AGENTFS_KIND_FILE, me, 0, &attr, &failure));
    EXPECT(AGENTFS_CODE_READ_ONLY, agentfs_write(old, look(old, AGENTFS_ROOT, "notes"), 0, bytes("x"), &failure));
    EXPECT(AGENTFS_CODE_BUSY, agentfs_delete_snapshot(workspace, first, &failure));
    agentfs_view_close(old);
    OK(agentfs_view_snapshot(workspace, second, &old, &failure));
    describe(&then, old, AGENTFS_ROOT);
    CHECK(strstr(then.text, "folder=2:0 []") && holds(old, look(old, AGENTFS_ROOT, "notes"), "later"));
    agentfs_view_close(old);

    // Who only reads sees what the pen writes.
    OK(agentfs_view_branch(workspace, branch, AGENTFS_ACCESS_READ, &beside, &failure));
    describe(&now, beside, AGENTFS_ROOT);
    CHECK(now.count == 7 && !strstr(now.text, "notes") && strstr(now.text, "[moved=1:1 ]"));
    EXPECT(AGENTFS_CODE_READ_ONLY, agentfs_unlink(beside, AGENTFS_ROOT, bytes("file"), &failure));
    agentfs_view_close(beside);

    // A branch from a snapshot: neither sees the other.
    OK(agentfs_branch(workspace, first, bytes("child"), &child, &failure));
    CHECK(strcmp(branches(workspace), "branch child ") == 0);
    OK(agentfs_view_branch(workspace, child, AGENTFS_ACCESS_WRITE, &beside, &failure));
    CHECK(holds(beside, look(beside, AGENTFS_ROOT, "notes"), "first"));
    make(beside, AGENTFS_ROOT, "only here", "x");
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_lookup(view, AGENTFS_ROOT, bytes("only here"), &attr, &failure));
    agentfs_view_close(beside);
    OK(agentfs_delete_branch(workspace, child, &failure));
    CHECK(strcmp(snapshots(workspace), "base/0 first/1 second/1 ") == 0);
    OK(agentfs_delete_snapshot(workspace, first, &failure));
    EXPECT(AGENTFS_CODE_NOT_FOUND, agentfs_delete_snapshot(workspace, first, &failure));
    CHECK(strcmp(snapshots(workspace), "base/0 second/1 ") == 0 && strcmp(branches(workspace), "branch ") == 0);
    OK(agentfs_sync(workspace, &failure));
    agentfs_view_close(view);
    OK(agentfs_close(workspace, &failure));
}

// The file "below", of which the branch has changed something, was changed between the two runs, and the file "came" made.
static void reopen(agentfs_bytes store, agentfs_bytes lower) {
    agentfs_workspace *workspace = NULL;
    agentfs_view *view = NULL, *old = NULL;
    uint32_t branch = 0;
    uint64_t second = 0;
    size_t changed = 0;
    agentfs_attr attr;

    EXPECT(AGENTFS_CODE_OTHER_LOWER, agentfs_open(store, bytes("/"), NULL, &workspace, &failure));
    OK(agentfs_open(store, lower, NULL, &workspace, &failure));
    OK(agentfs_branches(workspace, find_branch, &branch, &failure));
    OK(agentfs_snapshots(workspace, find_snapshot, &second, &failure));
    OK(agentfs_view_branch(workspace, branch, AGENTFS_ACCESS_WRITE, &view, &failure));
    struct drawing now;
    describe(&now, view, AGENTFS_ROOT);
    CHECK(now.count == 8 && strstr(now.text, "file=1:4 ") && strstr(now.text, "second=1:4 ") &&
          strstr(now.text, "link=3:0 "));
    uint64_t file = look(view, AGENTFS_ROOT, "file");
    CHECK(holds(view, file, "cont"));
    OK(agentfs_getattr(view, file, &attr, &failure));
    CHECK(attr.nlink == 2 && attr.uid == 7 && attr.mode == 0600);
    OK(agentfs_view_snapshot(workspace, second, &old, &failure));
    CHECK(holds(old, look(old, AGENTFS_ROOT, "notes"), "later"));
    EXPECT(AGENTFS_CODE_DATA_LOSS, agentfs_lookup(old, AGENTFS_ROOT, bytes("below"), &attr, &failure));
    CHECK(strstr(failure.message, "below"));
    look(view, AGENTFS_ROOT, "came");
    OK(agentfs_changed_below(workspace, branch, count_below, &changed, &failure));
    // Of the file that was changed here in part the rest was copied before, or some of it, or it is lost.
    uint8_t first = 0;
    size_t length = 0;
    int32_t code = agentfs_read(view, look(view, AGENTFS_ROOT, "below"), 0, &first, 1, &length, &failure);
    if (code == AGENTFS_CODE_OK)
        CHECK(length == 1 && first == 'b' && (changed == 1 || changed == 2));
    else
        CHECK(code == AGENTFS_CODE_DATA_LOSS && changed == 2);
    EXPECT(AGENTFS_CODE_INVALID, agentfs_changed_below(workspace, branch, NULL, NULL, &failure));
    agentfs_view_close(old);
    agentfs_view_close(view);
    OK(agentfs_close(workspace, &failure));

    // What is kept of it can be had without the lower directory.
    agentfs_options options = {.flags = AGENTFS_OPEN_WITHOUT_LOWER};
    OK(agentfs_open(store, bytes("/"), &options, &workspace, &failure));
    OK(agentfs_view_snapshot(workspace, second, &old, &failure));
    CHECK(holds(old, look(old, AGENTFS_ROOT, "notes"), "later"));
    CHECK(agentfs_lookup(old, AGENTFS_ROOT, bytes("below"), &attr, &failure) != AGENTFS_CODE_OK);
    agentfs_view_close(old);
    OK(agentfs_close(workspace, &failure));
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: agentfs_test STORE LOWER create|reopen\n");
        return 2;
    }
    CHECK(agentfs_abi_version() >> 16 == AGENTFS_ABI_VERSION >> 16);
    CHECK(strcmp(agentfs_code_text(AGENTFS_CODE_STALE), "stale inode number") == 0 && agentfs_code_text(1000) == NULL);
    if (strcmp(arguments[3], "create") == 0)
        create(bytes(arguments[1]), bytes(arguments[2]));
    else
        reopen(bytes(arguments[1]), bytes(arguments[2]));
    printf("%s: all as it should be\n", arguments[3]);
    return 0;
}
