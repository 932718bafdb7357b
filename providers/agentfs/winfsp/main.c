// Mounts a branch of a directory: agentfs-winfsp STORE LOWER BRANCH AT. The store, and a branch of that name, are made if
// there are none. Serves until Ctrl-C.

#include "host.h"

#include <stdio.h>
#include <stdlib.h>

static const char usage[] = "usage: agentfs-winfsp STORE LOWER BRANCH AT\n"
                            "  AT: a drive (X:), or a directory that is not there yet\n"
                            "\n"
                            "WinFsp - Windows File System Proxy, Copyright (C) Bill Zissimopoulos\n"
                            "https://github.com/winfsp/winfsp\n";

static agentfs_failure failure;

static int failed(const char *what) {
    fprintf(stderr, "error: %s: %s\n", what, failure.message);
    return 1;
}

// UTF-8, in memory that is never given back: there are four of them.
static agentfs_bytes utf8(const WCHAR *text) {
    int size = WideCharToMultiByte(CP_UTF8, WC_ERR_INVALID_CHARS, text, -1, NULL, 0, NULL, NULL);
    char *bytes = size > 0 ? malloc((size_t)size) : NULL;
    if (!bytes || WideCharToMultiByte(CP_UTF8, WC_ERR_INVALID_CHARS, text, -1, bytes, size, NULL, NULL) == 0) {
        fprintf(stderr, "error: an argument is not UTF-16\n");
        exit(2);
    }
    return (agentfs_bytes){(const uint8_t *)bytes, (size_t)size - 1};
}

struct search {
    agentfs_bytes label;
    uint32_t branch;
    bool found;
};

static bool is_wanted(void *context, const agentfs_branch_info *info) {
    struct search *search = context;
    if (info->label.length == search->label.length &&
        memcmp(info->label.data, search->label.data, info->label.length) == 0) {
        search->branch = info->id;
        search->found = true;
    }
    return !search->found;
}

static bool tell_event(void *context, const agentfs_event *event) {
    (void)context;
    fprintf(stderr, "changed below: %.*s\n", (int)event->path.length, (const char *)event->path.data);
    return true;
}

static HANDLE stop;

static BOOL WINAPI on_control(DWORD what) {
    (void)what;
    SetEvent(stop);
    return TRUE;
}

static NTSTATUS serve(agentfs_view *view, PWSTR at) {
    FSP_FSCTL_VOLUME_PARAMS params = {
        .Version = sizeof params,
        .SectorSize = VOLUME_BLOCK,
        .SectorsPerAllocationUnit = 1,
        .MaxComponentLength = NAME_MOST,
        .FileInfoTimeout = 1000,
        .CaseSensitiveSearch = 1,
        .CasePreservedNames = 1,
        .UnicodeOnDisk = 1,
        .PersistentAcls = 1,
        .ReparsePoints = 1,
        .PostCleanupWhenModifiedOnly = 1,
        // Each handle has a context of its own; WinFsp tells files apart by their paths.
        .UmFileContextIsUserContext2 = 1,
        // Else two names of one file would have a cache each for as long as Windows likes.
        .FlushAndPurgeOnCleanup = 1,
        .SupportsPosixUnlinkRename = 1,
        .FileSystemName = L"AgentFS",
    };
    FSP_FILE_SYSTEM *volume;
    WCHAR device[] = L"" FSP_FSCTL_DISK_DEVICE_NAME;
    NTSTATUS status = FspFileSystemCreate(device, &params, &operations, &volume);
    if (!NT_SUCCESS(status))
        return status;
    volume->UserContext = view;
    FspFileSystemSetOperationGuardStrategy(volume, FSP_FILE_SYSTEM_OPERATION_GUARD_STRATEGY_FINE);
    status = FspFileSystemSetMountPoint(volume, at);
    if (NT_SUCCESS(status))
        status = FspFileSystemStartDispatcher(volume, 0);
    if (NT_SUCCESS(status)) {
        fprintf(stderr, "mounted; Ctrl-C ends it\n");
        WaitForSingleObject(stop, INFINITE);
        FspFileSystemStopDispatcher(volume);
    }
    FspFileSystemDelete(volume);
    return status;
}

int wmain(int count, WCHAR **arguments) {
    if (count != 5) {
        fputs(usage, stderr);
        return 2;
    }
    if (agentfs_abi_version() >> 16 != AGENTFS_ABI_VERSION >> 16) {
        fprintf(stderr, "error: this is not the AgentFS library that it was compiled for\n");
        return 1;
    }
    NTSTATUS status = FspLoad(NULL);
    if (!NT_SUCCESS(status)) {
        fprintf(stderr, "error: WinFsp is not installed (%08lx)\nhint: https://winfsp.dev\n", (unsigned long)status);
        return 1;
    }
    stop = CreateEventW(NULL, TRUE, FALSE, NULL);
    if (!stop || !SetConsoleCtrlHandler(on_control, TRUE)) {
        fprintf(stderr, "error: Windows gives no event\n");
        return 1;
    }
    agentfs_bytes store = utf8(arguments[1]), lower = utf8(arguments[2]);
    struct search search = {.label = utf8(arguments[3])};
    agentfs_workspace *workspace;
    agentfs_view *view;
    int32_t code = agentfs_create(store, lower, &failure);
    if (code != AGENTFS_CODE_OK && code != AGENTFS_CODE_EXISTS)
        return failed("cannot make the store");
    if (agentfs_open(store, lower, NULL, &workspace, &failure) != AGENTFS_CODE_OK)
        return failed("cannot open the store");
    code = agentfs_branches(workspace, is_wanted, &search, &failure);
    if (code == AGENTFS_CODE_OK && !search.found) {
        uint64_t base;
        code = agentfs_base(workspace, search.label, &base, &failure);
        if (code == AGENTFS_CODE_OK)
            code = agentfs_branch(workspace, base, search.label, &search.branch, &failure);
    }
    if (code == AGENTFS_CODE_OK)
        code = agentfs_view_branch(workspace, search.branch, AGENTFS_ACCESS_WRITE, &view, &failure);
    if (code != AGENTFS_CODE_OK) {
        int answer = failed("cannot open the branch");
        agentfs_close(workspace, NULL);
        return answer;
    }
    status = serve(view, arguments[4]);
    if (!NT_SUCCESS(status))
        fprintf(stderr, "error: cannot mount (%08lx)\n", (unsigned long)status);
    agentfs_view_close(view);
    agentfs_events(workspace, tell_event, NULL, NULL);
    if (agentfs_close(workspace, &failure) != AGENTFS_CODE_OK)
        return failed("not all of it is on the disk");
    return NT_SUCCESS(status) ? 0 : 1;
}
