// What Windows asks. WinFsp lets operations that change names wait for each other and for all others (its fine strategy), and
// judges access by the descriptors that it is given here.

#include "host.h"

#include <stdlib.h>

#define READ_ONLY_MODE(mode) ((mode) & ~0222u)
#define WRITABLE_MODE(mode) ((mode) | 0200u)

static NTSTATUS tell_open(agentfs_view *view, uint64_t ino, FSP_FSCTL_FILE_INFO *info) {
    agentfs_attr attr;
    int32_t code = agentfs_getattr(view, ino, &attr, NULL);
    if (code == AGENTFS_CODE_OK)
        tell_file(&attr, info);
    return status_of(code);
}

static NTSTATUS give_descriptor(const agentfs_attr *attr, PSECURITY_DESCRIPTOR into, SIZE_T *size) {
    PSECURITY_DESCRIPTOR made;
    NTSTATUS status = security_of(attr, &made);
    if (!NT_SUCCESS(status))
        return status;
    SIZE_T needed = GetSecurityDescriptorLength(made);
    status = needed > *size ? STATUS_BUFFER_OVERFLOW : STATUS_SUCCESS;
    *size = needed;
    if (NT_SUCCESS(status) && into)
        memcpy(into, made, needed);
    FspDeleteSecurityDescriptor(made, (NTSTATUS (*)())FspPosixMapPermissionsToSecurityDescriptor);
    return status;
}

// The handle takes over the count by which the inode is known.
static NTSTATUS give_handle(agentfs_view *view, const agentfs_attr *attr, PVOID *context, FSP_FSCTL_FILE_INFO *info) {
    struct open_file *file = calloc(1, sizeof *file);
    if (!file) {
        forget(view, attr->ino);
        return STATUS_INSUFFICIENT_RESOURCES;
    }
    file->ino = attr->ino;
    file->is_directory = attr->kind == AGENTFS_KIND_DIRECTORY;
    *context = file;
    tell_file(attr, info);
    return STATUS_SUCCESS;
}

static NTSTATUS get_volume(FSP_FILE_SYSTEM *volume, FSP_FSCTL_VOLUME_INFO *info) {
    agentfs_stat_fs stat;
    int32_t code = agentfs_statfs(view_of(volume), &stat, NULL);
    if (code != AGENTFS_CODE_OK)
        return status_of(code);
    static const WCHAR label[] = L"AgentFS";
    info->TotalSize = stat.total;
    info->FreeSize = stat.free;
    info->VolumeLabelLength = sizeof label - sizeof *label;
    memcpy(info->VolumeLabel, label, info->VolumeLabelLength);
    return STATUS_SUCCESS;
}

// A symbolic link as Windows describes it: its target with `\` for `/`. Without a buffer: whether it is one.
static NTSTATUS describe_link(agentfs_view *view, const agentfs_attr *attr, PVOID buffer, PSIZE_T size) {
    uint8_t target[4096];
    WCHAR wide[4096];
    size_t length = 0, count = 0;
    if (attr->kind != AGENTFS_KIND_SYMLINK)
        return STATUS_NOT_A_REPARSE_POINT;
    if (!buffer)
        return STATUS_SUCCESS;
    int32_t code = agentfs_readlink(view, attr->ino, target, sizeof target, &length, NULL);
    if (code != AGENTFS_CODE_OK)
        return status_of(code);
    for (size_t begin = 0, end; begin < length; begin = end + 1) {
        for (end = begin; end < length && target[end] != '/';)
            end++;
        bool special =
            (end - begin == 1 && target[begin] == '.') || (end - begin == 2 && memcmp(target + begin, "..", 2) == 0);
        if (special)
            for (size_t at = begin; at < end; at++)
                wide[count++] = target[at];
        else
            count += name_to_wide(target + begin, end - begin, wide + count);
        if (end < length)
            wide[count++] = L'\\';
    }
    PREPARSE_DATA_BUFFER data = buffer;
    SIZE_T bytes = count * sizeof *wide;
    SIZE_T needed = FIELD_OFFSET(REPARSE_DATA_BUFFER, SymbolicLinkReparseBuffer.PathBuffer) + 2 * bytes;
    if (needed > *size)
        return STATUS_BUFFER_TOO_SMALL;
    memset(data, 0, FIELD_OFFSET(REPARSE_DATA_BUFFER, SymbolicLinkReparseBuffer.PathBuffer));
    data->ReparseTag = IO_REPARSE_TAG_SYMLINK;
    data->ReparseDataLength = (USHORT)(needed - REPARSE_DATA_BUFFER_HEADER_SIZE);
    data->SymbolicLinkReparseBuffer.SubstituteNameLength = (USHORT)bytes;
    data->SymbolicLinkReparseBuffer.PrintNameOffset = (USHORT)bytes;
    data->SymbolicLinkReparseBuffer.PrintNameLength = (USHORT)bytes;
    data->SymbolicLinkReparseBuffer.Flags = length > 0 && target[0] == '/' ? 0 : SYMLINK_FLAG_RELATIVE;
    memcpy(data->SymbolicLinkReparseBuffer.PathBuffer, wide, bytes);
    memcpy((uint8_t *)data->SymbolicLinkReparseBuffer.PathBuffer + bytes, wide, bytes);
    *size = needed;
    return STATUS_SUCCESS;
}

static NTSTATUS link_by_name(FSP_FILE_SYSTEM *volume, PVOID context, PWSTR path, BOOLEAN is_directory, PVOID buffer,
                             PSIZE_T size) {
    (void)context, (void)is_directory;
    agentfs_attr attr;
    NTSTATUS status = follow(view_of(volume), path, &attr);
    if (!NT_SUCCESS(status))
        return status;
    status = describe_link(view_of(volume), &attr, buffer, size);
    forget(view_of(volume), attr.ino);
    return status;
}

static NTSTATUS resolve_links(FSP_FILE_SYSTEM *volume, PWSTR path, UINT32 index, BOOLEAN last, PIO_STATUS_BLOCK io,
                              PVOID buffer, PSIZE_T size) {
    return FspFileSystemResolveReparsePoints(volume, link_by_name, NULL, path, index, last, io, buffer, size);
}

static NTSTATUS get_link(FSP_FILE_SYSTEM *volume, PVOID context, PWSTR path, PVOID buffer, PSIZE_T size) {
    (void)path;
    agentfs_attr attr;
    int32_t code = agentfs_getattr(view_of(volume), ((struct open_file *)context)->ino, &attr, NULL);
    return code == AGENTFS_CODE_OK ? describe_link(view_of(volume), &attr, buffer, size) : status_of(code);
}

static NTSTATUS get_security_by_name(FSP_FILE_SYSTEM *volume, PWSTR path, PUINT32 attributes,
                                     PSECURITY_DESCRIPTOR descriptor, SIZE_T *size) {
    agentfs_attr attr;
    NTSTATUS status = follow(view_of(volume), path, &attr);
    if (!NT_SUCCESS(status)) {
        // It may lead through a link.
        bool through = FspFileSystemFindReparsePoint(volume, link_by_name, NULL, path, attributes);
        return through ? STATUS_REPARSE : status;
    }
    if (attributes)
        *attributes = attributes_of(&attr);
    if (size)
        status = give_descriptor(&attr, descriptor, size);
    forget(view_of(volume), attr.ino);
    return status;
}

static NTSTATUS create(FSP_FILE_SYSTEM *volume, PWSTR path, UINT32 options, UINT32 access, UINT32 attributes,
                       PSECURITY_DESCRIPTOR descriptor, UINT64 allocation, PVOID *context, FSP_FSCTL_FILE_INFO *info) {
    (void)access, (void)allocation;
    agentfs_view *view = view_of(volume);
    uint8_t name[NAME_MOST];
    size_t length;
    uint64_t parent;
    agentfs_attr attr;
    NTSTATUS status = follow_to_parent(view, path, &parent, name, &length);
    if (!NT_SUCCESS(status))
        return status;
    bool directory = options & FILE_DIRECTORY_FILE;
    agentfs_owner owner = {0};
    if (descriptor) {
        status = owner_asked(descriptor, &owner);
    } else {
        status = status_of(agentfs_getattr(view, parent, &attr, NULL));
        owner = (agentfs_owner){attr.mode & (directory ? 0777 : 0666), attr.uid, attr.gid};
    }
    if (!directory && attributes & FILE_ATTRIBUTE_READONLY)
        owner.mode = READ_ONLY_MODE(owner.mode);
    if (NT_SUCCESS(status)) {
        uint32_t kind = directory ? AGENTFS_KIND_DIRECTORY : AGENTFS_KIND_FILE;
        status = status_of(agentfs_mknod(view, parent, (agentfs_bytes){name, length}, kind, owner, 0, &attr, NULL));
    }
    forget(view, parent);
    return NT_SUCCESS(status) ? give_handle(view, &attr, context, info) : status;
}

static NTSTATUS open_file(FSP_FILE_SYSTEM *volume, PWSTR path, UINT32 options, UINT32 access, PVOID *context,
                          FSP_FSCTL_FILE_INFO *info) {
    (void)options, (void)access;
    agentfs_attr attr;
    NTSTATUS status = follow(view_of(volume), path, &attr);
    return NT_SUCCESS(status) ? give_handle(view_of(volume), &attr, context, info) : status;
}

static NTSTATUS change(agentfs_view *view, uint64_t ino, const agentfs_set_attr *set, FSP_FSCTL_FILE_INFO *info) {
    agentfs_attr attr;
    int32_t code = agentfs_setattr(view, ino, set, &attr, NULL);
    if (code == AGENTFS_CODE_OK)
        tell_file(&attr, info);
    return status_of(code);
}

// Of the attributes of Windows a tree keeps one: that a file is not to be written.
static int32_t ask_attributes(agentfs_view *view, uint64_t ino, UINT32 attributes, bool replace,
                              agentfs_set_attr *set) {
    agentfs_attr attr;
    int32_t code = agentfs_getattr(view, ino, &attr, NULL);
    if (code != AGENTFS_CODE_OK || attr.kind != AGENTFS_KIND_FILE)
        return code;
    bool read_only = (attr.mode & 0222) == 0;
    bool wanted = attributes & FILE_ATTRIBUTE_READONLY || (!replace && read_only);
    if (wanted != read_only) {
        set->set |= AGENTFS_SET_MODE;
        set->mode = wanted ? READ_ONLY_MODE(attr.mode) : WRITABLE_MODE(attr.mode);
    }
    return AGENTFS_CODE_OK;
}

static NTSTATUS overwrite(FSP_FILE_SYSTEM *volume, PVOID context, UINT32 attributes, BOOLEAN replace, UINT64 allocation,
                          FSP_FSCTL_FILE_INFO *info) {
    (void)allocation;
    uint64_t ino = ((struct open_file *)context)->ino;
    agentfs_set_attr set = {.set = AGENTFS_SET_SIZE};
    int32_t code = ask_attributes(view_of(volume), ino, attributes, replace, &set);
    return code == AGENTFS_CODE_OK ? change(view_of(volume), ino, &set, info) : status_of(code);
}

// Called when a handle is closed that changed the file, or is to delete it; whether that worked cannot be said.
static VOID cleanup(FSP_FILE_SYSTEM *volume, PVOID context, PWSTR path, ULONG flags) {
    uint8_t name[NAME_MOST];
    size_t length;
    uint64_t parent;
    if (!(flags & FspCleanupDelete) || !path ||
        !NT_SUCCESS(follow_to_parent(view_of(volume), path, &parent, name, &length)))
        return;
    agentfs_bytes last = {name, length};
    if (((struct open_file *)context)->is_directory)
        agentfs_rmdir(view_of(volume), parent, last, NULL);
    else
        agentfs_unlink(view_of(volume), parent, last, NULL);
    forget(view_of(volume), parent);
}

static VOID close_file(FSP_FILE_SYSTEM *volume, PVOID context) {
    struct open_file *file = context;
    FspFileSystemDeleteDirectoryBuffer(&file->names);
    forget(view_of(volume), file->ino);
    free(file);
}

static NTSTATUS read_file(FSP_FILE_SYSTEM *volume, PVOID context, PVOID buffer, UINT64 offset, ULONG length,
                          PULONG done) {
    size_t count = 0;
    int32_t code =
        agentfs_read(view_of(volume), ((struct open_file *)context)->ino, offset, buffer, length, &count, NULL);
    *done = (ULONG)count;
    if (code == AGENTFS_CODE_OK && count == 0 && length > 0)
        return STATUS_END_OF_FILE;
    return status_of(code);
}

// `constrained`: it comes from the cache, and must not make the file longer.
static NTSTATUS write_file(FSP_FILE_SYSTEM *volume, PVOID context, PVOID buffer, UINT64 offset, ULONG length,
                           BOOLEAN at_end, BOOLEAN constrained, PULONG done, FSP_FSCTL_FILE_INFO *info) {
    uint64_t ino = ((struct open_file *)context)->ino;
    agentfs_attr attr;
    int32_t code = agentfs_getattr(view_of(volume), ino, &attr, NULL);
    if (code != AGENTFS_CODE_OK)
        return status_of(code);
    if (at_end)
        offset = attr.size;
    if (constrained) {
        uint64_t room = offset < attr.size ? attr.size - offset : 0;
        length = length < room ? length : (ULONG)room;
    }
    if (length > 0)
        code = agentfs_write(view_of(volume), ino, offset, (agentfs_bytes){buffer, length}, NULL);
    if (code != AGENTFS_CODE_OK)
        return status_of(code);
    *done = length;
    return tell_open(view_of(volume), ino, info);
}

// No handle: everything.
static NTSTATUS flush(FSP_FILE_SYSTEM *volume, PVOID context, FSP_FSCTL_FILE_INFO *info) {
    uint64_t ino = context ? ((struct open_file *)context)->ino : AGENTFS_ROOT;
    int32_t code = agentfs_fsync(view_of(volume), ino, NULL);
    return code == AGENTFS_CODE_OK && context ? tell_open(view_of(volume), ino, info) : status_of(code);
}

static NTSTATUS get_file(FSP_FILE_SYSTEM *volume, PVOID context, FSP_FSCTL_FILE_INFO *info) {
    return tell_open(view_of(volume), ((struct open_file *)context)->ino, info);
}

// The times of birth and of the last change of anything cannot be set in a tree.
static NTSTATUS set_basic(FSP_FILE_SYSTEM *volume, PVOID context, UINT32 attributes, UINT64 birth, UINT64 access,
                          UINT64 write, UINT64 any, FSP_FSCTL_FILE_INFO *info) {
    (void)birth, (void)any;
    uint64_t ino = ((struct open_file *)context)->ino;
    agentfs_set_attr set = {0};
    if (attributes != INVALID_FILE_ATTRIBUTES) {
        int32_t code = ask_attributes(view_of(volume), ino, attributes, true, &set);
        if (code != AGENTFS_CODE_OK)
            return status_of(code);
    }
    if (time_asked(access, &set.atime))
        set.set |= AGENTFS_SET_ATIME;
    if (time_asked(write, &set.mtime))
        set.set |= AGENTFS_SET_MTIME;
    return set.set ? change(view_of(volume), ino, &set, info) : tell_open(view_of(volume), ino, info);
}

static NTSTATUS set_size(FSP_FILE_SYSTEM *volume, PVOID context, UINT64 size, BOOLEAN allocation,
                         FSP_FSCTL_FILE_INFO *info) {
    uint64_t ino = ((struct open_file *)context)->ino;
    agentfs_attr attr;
    int32_t code = agentfs_getattr(view_of(volume), ino, &attr, NULL);
    if (code != AGENTFS_CODE_OK)
        return status_of(code);
    // Space is not set aside; less of it than there is bytes cuts the file.
    if (allocation && size >= attr.size) {
        tell_file(&attr, info);
        return STATUS_SUCCESS;
    }
    agentfs_set_attr set = {.set = AGENTFS_SET_SIZE, .size = size};
    return change(view_of(volume), ino, &set, info);
}

static bool found_one(void *context, const agentfs_entry *entry) {
    (void)entry;
    *(bool *)context = true;
    return false;
}

static NTSTATUS can_delete(FSP_FILE_SYSTEM *volume, PVOID context, PWSTR path) {
    (void)path;
    struct open_file *file = context;
    if (file->ino == AGENTFS_ROOT)
        return STATUS_ACCESS_DENIED;
    if (!file->is_directory)
        return STATUS_SUCCESS;
    bool found = false;
    int32_t code = agentfs_readdir(view_of(volume), file->ino, 0, found_one, &found, NULL);
    return code == AGENTFS_CODE_OK && found ? STATUS_DIRECTORY_NOT_EMPTY : status_of(code);
}

static NTSTATUS rename_file(FSP_FILE_SYSTEM *volume, PVOID context, PWSTR path, PWSTR new_path, BOOLEAN replace) {
    (void)context;
    agentfs_view *view = view_of(volume);
    uint8_t name[NAME_MOST], new_name[NAME_MOST];
    size_t length, new_length, path_length = wcslen(path);
    uint64_t parent, new_parent;
    // The tree knows it only while all directories between are known.
    if (wcsncmp(path, new_path, path_length) == 0 && new_path[path_length] == L'\\')
        return STATUS_INVALID_PARAMETER;
    NTSTATUS status = follow_to_parent(view, path, &parent, name, &length);
    if (!NT_SUCCESS(status))
        return status;
    status = follow_to_parent(view, new_path, &new_parent, new_name, &new_length);
    if (NT_SUCCESS(status)) {
        uint32_t how = replace ? AGENTFS_RENAME_HOW_REPLACE : AGENTFS_RENAME_HOW_NO_REPLACE;
        agentfs_bytes from = {name, length}, to = {new_name, new_length};
        int32_t code = agentfs_rename(view, parent, from, new_parent, to, how, NULL);
        // As Windows says it of a directory that is in the way.
        bool in_the_way =
            code == AGENTFS_CODE_IS_DIRECTORY || code == AGENTFS_CODE_NOT_EMPTY || code == AGENTFS_CODE_NOT_DIRECTORY;
        status = in_the_way ? STATUS_ACCESS_DENIED : status_of(code);
        forget(view, new_parent);
    }
    forget(view, parent);
    return status;
}

static NTSTATUS get_security(FSP_FILE_SYSTEM *volume, PVOID context, PSECURITY_DESCRIPTOR descriptor, SIZE_T *size) {
    agentfs_attr attr;
    int32_t code = agentfs_getattr(view_of(volume), ((struct open_file *)context)->ino, &attr, NULL);
    return code == AGENTFS_CODE_OK ? give_descriptor(&attr, descriptor, size) : status_of(code);
}

// What a descriptor says beyond owner, group and permission bits is not kept.
static NTSTATUS set_security(FSP_FILE_SYSTEM *volume, PVOID context, SECURITY_INFORMATION what,
                             PSECURITY_DESCRIPTOR change_to) {
    uint64_t ino = ((struct open_file *)context)->ino;
    agentfs_attr attr;
    PSECURITY_DESCRIPTOR before, after;
    agentfs_owner owner;
    int32_t code = agentfs_getattr(view_of(volume), ino, &attr, NULL);
    if (code != AGENTFS_CODE_OK)
        return status_of(code);
    NTSTATUS status = security_of(&attr, &before);
    if (!NT_SUCCESS(status))
        return status;
    status = FspSetSecurityDescriptor(before, what, change_to, &after);
    if (NT_SUCCESS(status)) {
        status = owner_asked(after, &owner);
        FspDeleteSecurityDescriptor(after, (NTSTATUS (*)())FspSetSecurityDescriptor);
    }
    FspDeleteSecurityDescriptor(before, (NTSTATUS (*)())FspPosixMapPermissionsToSecurityDescriptor);
    if (!NT_SUCCESS(status))
        return status;
    agentfs_set_attr set = {.mode = owner.mode, .uid = owner.uid, .gid = owner.gid};
    set.set = AGENTFS_SET_MODE | AGENTFS_SET_UID | AGENTFS_SET_GID;
    return status_of(agentfs_setattr(view_of(volume), ino, &set, NULL, NULL));
}

struct listing {
    agentfs_view *view;
    struct open_file *directory;
    NTSTATUS status;
};

static bool list_one(struct listing *listing, const WCHAR *name, size_t count, const agentfs_attr *attr) {
    union {
        uint8_t bytes[FIELD_OFFSET(FSP_FSCTL_DIR_INFO, FileNameBuf) + NAME_MOST * sizeof(WCHAR)];
        FSP_FSCTL_DIR_INFO info;
    } one;
    memset(&one, 0, sizeof one);
    one.info.Size = (UINT16)(FIELD_OFFSET(FSP_FSCTL_DIR_INFO, FileNameBuf) + count * sizeof *name);
    tell_file(attr, &one.info.FileInfo);
    memcpy(one.info.FileNameBuf, name, count * sizeof *name);
    return FspFileSystemFillDirectoryBuffer(&listing->directory->names, &one.info, &listing->status);
}

static bool list_entry(void *context, const agentfs_entry *entry) {
    struct listing *listing = context;
    WCHAR name[NAME_MOST];
    agentfs_attr attr;
    size_t count = name_to_wide(entry->name.data, entry->name.length, name);
    if (agentfs_lookup(listing->view, listing->directory->ino, entry->name, &attr, NULL) == AGENTFS_CODE_OK)
        forget(listing->view, attr.ino);
    else
        // It was changed below, say: a name all the same, and an error for who opens it.
        attr = (agentfs_attr){.ino = entry->ino, .kind = entry->kind, .mode = 0444};
    return list_one(listing, name, count, &attr);
}

// WinFsp keeps the names in an order of its own, and goes on behind the marker.
static NTSTATUS read_directory(FSP_FILE_SYSTEM *volume, PVOID context, PWSTR pattern, PWSTR marker, PVOID buffer,
                               ULONG length, PULONG done) {
    (void)pattern;
    struct listing listing = {view_of(volume), context, STATUS_SUCCESS};
    struct open_file *directory = context;
    if (FspFileSystemAcquireDirectoryBuffer(&directory->names, marker == NULL, &listing.status)) {
        agentfs_attr attr;
        int32_t code = agentfs_getattr(listing.view, directory->ino, &attr, NULL);
        bool going = code == AGENTFS_CODE_OK;
        if (going && directory->ino != AGENTFS_ROOT)
            // What is above need not be known: nobody asks for more than its name.
            going = list_one(&listing, L".", 1, &attr) && list_one(&listing, L"..", 2, &attr);
        if (going)
            code = agentfs_readdir(listing.view, directory->ino, 0, list_entry, &listing, NULL);
        FspFileSystemReleaseDirectoryBuffer(&directory->names);
        if (NT_SUCCESS(listing.status))
            listing.status = status_of(code);
    }
    if (!NT_SUCCESS(listing.status))
        return listing.status;
    FspFileSystemReadDirectoryBuffer(&directory->names, marker, buffer, length, done);
    return STATUS_SUCCESS;
}

const FSP_FILE_SYSTEM_INTERFACE operations = {
    .GetVolumeInfo = get_volume,
    .GetSecurityByName = get_security_by_name,
    .Create = create,
    .Open = open_file,
    .Overwrite = overwrite,
    .Cleanup = cleanup,
    .Close = close_file,
    .Read = read_file,
    .Write = write_file,
    .Flush = flush,
    .GetFileInfo = get_file,
    .SetBasicInfo = set_basic,
    .SetFileSize = set_size,
    .CanDelete = can_delete,
    .Rename = rename_file,
    .GetSecurity = get_security,
    .SetSecurity = set_security,
    .ReadDirectory = read_directory,
    .ResolveReparsePoints = resolve_links,
    .GetReparsePoint = get_link,
};
