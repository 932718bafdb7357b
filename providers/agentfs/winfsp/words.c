#include "host.h"

NTSTATUS status_of(int32_t code) {
    switch (code) {
    case AGENTFS_CODE_OK: return STATUS_SUCCESS;
    case AGENTFS_CODE_NOT_FOUND: return STATUS_OBJECT_NAME_NOT_FOUND;
    case AGENTFS_CODE_EXISTS: return STATUS_OBJECT_NAME_COLLISION;
    case AGENTFS_CODE_NOT_DIRECTORY: return STATUS_NOT_A_DIRECTORY;
    case AGENTFS_CODE_IS_DIRECTORY: return STATUS_FILE_IS_A_DIRECTORY;
    case AGENTFS_CODE_NOT_EMPTY: return STATUS_DIRECTORY_NOT_EMPTY;
    case AGENTFS_CODE_INVALID: return STATUS_INVALID_PARAMETER;
    case AGENTFS_CODE_NAME_TOO_LONG: return STATUS_OBJECT_NAME_INVALID;
    case AGENTFS_CODE_READ_ONLY: return STATUS_MEDIA_WRITE_PROTECTED;
    case AGENTFS_CODE_NO_SPACE: return STATUS_DISK_FULL;
    case AGENTFS_CODE_NOT_PERMITTED: return STATUS_ACCESS_DENIED;
    case AGENTFS_CODE_FILE_TOO_LARGE: return STATUS_FILE_TOO_LARGE;
    case AGENTFS_CODE_NO_DATA: return STATUS_END_OF_FILE;
    case AGENTFS_CODE_TOO_MANY_LINKS: return STATUS_TOO_MANY_LINKS;
    case AGENTFS_CODE_BUSY: return STATUS_DEVICE_BUSY;
    case AGENTFS_CODE_STALE: return STATUS_FILE_INVALID;
    case AGENTFS_CODE_UNSUPPORTED: return STATUS_NOT_SUPPORTED;
    case AGENTFS_CODE_DATA_LOSS: return STATUS_DATA_ERROR;
    case AGENTFS_CODE_CORRUPT: return STATUS_DISK_CORRUPT_ERROR;
    case AGENTFS_CODE_IO: return STATUS_IO_DEVICE_ERROR;
    case AGENTFS_CODE_TOO_SMALL: return STATUS_BUFFER_TOO_SMALL;
    case AGENTFS_CODE_INTERNAL: return STATUS_INTERNAL_ERROR;
    default: return STATUS_UNSUCCESSFUL;
    }
}

// Windows counts 100 nanoseconds from 1601.
#define TICKS 10000000
#define TO_1970 11644473600

static uint64_t windows_time(agentfs_time time) {
    if (time.seconds < -TO_1970 || time.seconds > INT64_MAX / TICKS - TO_1970 - 1)
        return 0;
    return (uint64_t)(time.seconds + TO_1970) * TICKS + time.nanoseconds / 100;
}

bool time_asked(uint64_t time, agentfs_time *into) {
    if (time == 0 || time > INT64_MAX)
        return false;
    *into = (agentfs_time){(int64_t)(time / TICKS) - TO_1970, (uint32_t)(time % TICKS * 100), 0};
    return true;
}

uint32_t attributes_of(const agentfs_attr *attr) {
    uint32_t attributes = 0;
    if (attr->kind == AGENTFS_KIND_DIRECTORY)
        attributes |= FILE_ATTRIBUTE_DIRECTORY;
    else if (attr->kind == AGENTFS_KIND_SYMLINK)
        attributes |= FILE_ATTRIBUTE_REPARSE_POINT;
    else if (attr->kind != AGENTFS_KIND_FILE)
        attributes |= FILE_ATTRIBUTE_SYSTEM;
    // Of a directory it means something else.
    if (attr->kind == AGENTFS_KIND_FILE && (attr->mode & 0222) == 0)
        attributes |= FILE_ATTRIBUTE_READONLY;
    return attributes ? attributes : FILE_ATTRIBUTE_NORMAL;
}

void tell_file(const agentfs_attr *attr, FSP_FSCTL_FILE_INFO *info) {
    bool is_file = attr->kind == AGENTFS_KIND_FILE;
    *info = (FSP_FSCTL_FILE_INFO){
        .FileAttributes = attributes_of(attr),
        .ReparseTag = attr->kind == AGENTFS_KIND_SYMLINK ? IO_REPARSE_TAG_SYMLINK : 0,
        .FileSize = is_file ? attr->size : 0,
        .AllocationSize = is_file ? (attr->size + VOLUME_BLOCK - 1) / VOLUME_BLOCK * VOLUME_BLOCK : 0,
        .CreationTime = windows_time(attr->btime),
        .LastAccessTime = windows_time(attr->atime),
        .LastWriteTime = windows_time(attr->mtime),
        .ChangeTime = windows_time(attr->ctime),
        .IndexNumber = attr->ino,
    };
}

NTSTATUS security_of(const agentfs_attr *attr, PSECURITY_DESCRIPTOR *descriptor) {
    return FspPosixMapPermissionsToSecurityDescriptor(attr->uid, attr->gid, attr->mode, descriptor);
}

NTSTATUS owner_asked(PSECURITY_DESCRIPTOR descriptor, agentfs_owner *owner) {
    return FspPosixMapSecurityDescriptorToPermissions(descriptor, &owner->uid, &owner->gid, &owner->mode);
}
