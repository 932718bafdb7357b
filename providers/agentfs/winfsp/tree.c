#include "host.h"

agentfs_view *view_of(FSP_FILE_SYSTEM *volume) {
    return volume->UserContext;
}

void forget(agentfs_view *view, uint64_t ino) {
    if (ino != AGENTFS_ROOT)
        agentfs_forget(view, ino, 1, NULL);
}

// The next name of a path, which is moved behind it. 0: there is none. `bad`: no name in the tree is seen so.
static size_t next_name(const WCHAR **path, uint8_t name[NAME_MOST], bool *bad) {
    while (**path == L'\\')
        ++*path;
    const WCHAR *begin = *path;
    while (**path && **path != L'\\')
        ++*path;
    size_t length = name_from_wide(begin, (size_t)(*path - begin), name);
    *bad = *path != begin && length == 0;
    return length;
}

// As far as a path leads, but by its last name if `to_parent`: that is given instead.
static NTSTATUS walk(agentfs_view *view, const WCHAR *path, bool to_parent, agentfs_attr *at, uint8_t name[NAME_MOST],
                     size_t *length) {
    bool bad = false;
    int32_t code = agentfs_getattr(view, AGENTFS_ROOT, at, NULL);
    *length = next_name(&path, name, &bad);
    while (code == AGENTFS_CODE_OK && *length > 0) {
        uint8_t further[NAME_MOST];
        bool further_bad = false;
        size_t further_length = next_name(&path, further, &further_bad);
        bool last = further_length == 0 && !further_bad;
        if (last && to_parent)
            return STATUS_SUCCESS;
        uint64_t parent = at->ino;
        code = agentfs_lookup(view, parent, (agentfs_bytes){name, *length}, at, NULL);
        forget(view, parent);
        if (code == AGENTFS_CODE_NOT_FOUND || code == AGENTFS_CODE_NOT_DIRECTORY)
            return last ? STATUS_OBJECT_NAME_NOT_FOUND : STATUS_OBJECT_PATH_NOT_FOUND;
        memcpy(name, further, further_length);
        *length = further_length;
        bad = further_bad;
    }
    if (code == AGENTFS_CODE_OK && bad) {
        forget(view, at->ino);
        return STATUS_OBJECT_NAME_INVALID;
    }
    return status_of(code);
}

NTSTATUS follow(agentfs_view *view, const WCHAR *path, agentfs_attr *attr) {
    uint8_t name[NAME_MOST];
    size_t length = 0;
    return walk(view, path, false, attr, name, &length);
}

NTSTATUS follow_to_parent(agentfs_view *view, const WCHAR *path, uint64_t *parent, uint8_t name[NAME_MOST],
                          size_t *length) {
    agentfs_attr attr;
    NTSTATUS status = walk(view, path, true, &attr, name, length);
    if (!NT_SUCCESS(status))
        return status;
    *parent = attr.ino;
    // The root is in no directory.
    return *length == 0 ? STATUS_ACCESS_DENIED : STATUS_SUCCESS;
}
