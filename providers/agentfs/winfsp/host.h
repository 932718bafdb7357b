// A tree of AgentFS as a volume of Windows, by WinFsp's C interface and AgentFS's.
//
// names.c: names; words.c: outcomes, times, attributes, permissions; tree.c: how a path is followed; operations.c: what Windows
// asks; main.c: a store is opened, a branch mounted.

#ifndef AGENTFS_WINFSP_HOST_H
#define AGENTFS_WINFSP_HOST_H

#include <stdbool.h>

#include <winfsp/winfsp.h>

#include "agentfs.h"
#include "names.h"

#define VOLUME_BLOCK 4096

// What a handle of Windows stands for.
struct open_file {
    uint64_t ino;
    bool is_directory;
    // The names of a directory, as they were when its reading began; WinFsp's.
    void *names;
};

// What is told to Windows when something else than the call failed.
NTSTATUS status_of(int32_t code);

void tell_file(const agentfs_attr *attr, FSP_FSCTL_FILE_INFO *info);
uint32_t attributes_of(const agentfs_attr *attr);
// False: Windows leaves it to us.
bool time_asked(uint64_t time, agentfs_time *into);
// A descriptor that says what owner, group and permission bits say. To be freed by FspDeleteSecurityDescriptor.
NTSTATUS security_of(const agentfs_attr *attr, PSECURITY_DESCRIPTOR *descriptor);
NTSTATUS owner_asked(PSECURITY_DESCRIPTOR descriptor, agentfs_owner *owner);

agentfs_view *view_of(FSP_FILE_SYSTEM *volume);
void forget(agentfs_view *view, uint64_t ino);
// Follows a path of Windows, `\` being the root. What it leads to is counted as known.
NTSTATUS follow(agentfs_view *view, const WCHAR *path, agentfs_attr *attr);
// The directory in which the last name of a path is, counted as known, and that name.
NTSTATUS follow_to_parent(agentfs_view *view, const WCHAR *path, uint64_t *parent, uint8_t name[NAME_MOST],
                          size_t *length);

extern const FSP_FILE_SYSTEM_INTERFACE operations;

#endif
