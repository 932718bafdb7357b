// AgentFS's C interface in the words of Swift: errors are thrown, bytes are Data, handles are closed with their owner.

import CAgentFS
import Foundation

/// What a call came to, with the number that the system has for it.
struct Failure: Error {
    let code: Int32
    let system: Int32
    let message: String

    init(_ code: agentfs_code, _ system: Int32, _ message: String) {
        (self.code, self.system, self.message) = (Int32(code.rawValue), system, message)
    }

    static let argument = Failure(AGENTFS_CODE_INVALID, EINVAL, "invalid argument")
}

/// Runs one call; anything but OK is thrown.
func check(_ call: (UnsafeMutablePointer<agentfs_failure>) -> Int32) throws {
    var failure = agentfs_failure()
    let code = call(&failure)
    guard code != Int32(AGENTFS_CODE_OK.rawValue) else { return }
    let message = withUnsafeBytes(of: &failure.message) { bytes in
        String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }
    throw Failure(agentfs_code(rawValue: UInt32(code)), failure.system, message)
}

extension Data {
    /// For the length of one call.
    func lent<T>(_ body: (agentfs_bytes) throws -> T) rethrows -> T {
        try withUnsafeBytes { bytes in
            try body(agentfs_bytes(data: bytes.bindMemory(to: UInt8.self).baseAddress, length: bytes.count))
        }
    }
}

extension agentfs_bytes {
    var copied: Data {
        length == 0 ? Data() : Data(bytes: data, count: length)
    }
}

/// One name of a directory.
struct Entry {
    let cookie: UInt64
    let ino: UInt64
    let kind: UInt32
    let name: Data
}

/// False: no more.
typealias Show = (Entry) -> Bool

/// An open store and one tree in it. Any number of threads may use it.
final class Tree: @unchecked Sendable {
    private let workspace: OpaquePointer
    private let view: OpaquePointer

    /// `branch`: its number; nil is the oldest that there is.
    init(store: String, lower: String, branch: UInt32?, readOnly: Bool) throws {
        guard agentfs_abi_version() >> 16 == UInt32(AGENTFS_ABI_VERSION) >> 16 else {
            throw Failure(AGENTFS_CODE_UNSUPPORTED, ENOTSUP, "another version of the library")
        }
        var handle: OpaquePointer?
        try Data(store.utf8).lent { store in
            try Data(lower.utf8).lent { lower in
                try check { agentfs_open(store, lower, nil, &handle, $0) }
            }
        }
        guard let opened = handle else { throw Failure.argument }
        do {
            let number = try branch ?? Tree.oldestBranch(of: opened)
            let access = readOnly ? AGENTFS_ACCESS_READ : AGENTFS_ACCESS_WRITE
            var handle: OpaquePointer?
            try check { agentfs_view_branch(opened, number, access.rawValue, &handle, $0) }
            guard let tree = handle else { throw Failure.argument }
            workspace = opened
            view = tree
        } catch {
            agentfs_close(opened, nil)
            throw error
        }
    }

    deinit {
        agentfs_view_close(view)
        agentfs_close(workspace, nil)
    }

    private static func oldestBranch(of workspace: OpaquePointer) throws -> UInt32 {
        var found: UInt32?
        try withUnsafeMutablePointer(to: &found) { found in
            try check { failure in
                agentfs_branches(workspace, { context, info in
                    context!.assumingMemoryBound(to: UInt32?.self).pointee = info!.pointee.id
                    return false
                }, found, failure)
            }
        }
        guard let first = found else {
            throw Failure(AGENTFS_CODE_NOT_FOUND, ENOENT, "there is no branch")
        }
        return first
    }

    func sync() throws {
        try check { agentfs_sync(workspace, $0) }
    }

    func attributes(_ ino: UInt64) throws -> agentfs_attr {
        var attr = agentfs_attr()
        try check { agentfs_getattr(view, ino, &attr, $0) }
        return attr
    }

    /// Counts that the inode is known, as do all that make or link one.
    func lookup(_ name: Data, in directory: UInt64) throws -> agentfs_attr {
        var attr = agentfs_attr()
        try name.lent { name in try check { agentfs_lookup(view, directory, name, &attr, $0) } }
        return attr
    }

    func forget(_ ino: UInt64) {
        if ino != UInt64(AGENTFS_ROOT) {
            agentfs_forget(view, ino, 1, nil)
        }
    }

    func make(_ name: Data, in directory: UInt64, kind: agentfs_kind, owner: agentfs_owner) throws -> agentfs_attr {
        var attr = agentfs_attr()
        try name.lent { name in
            try check { agentfs_mknod(view, directory, name, kind.rawValue, owner, 0, &attr, $0) }
        }
        return attr
    }

    func symlink(_ name: Data, in directory: UInt64, to target: Data, owner: agentfs_owner) throws -> agentfs_attr {
        var attr = agentfs_attr()
        try name.lent { name in
            try target.lent { target in
                try check { agentfs_symlink(view, directory, name, target, owner, &attr, $0) }
            }
        }
        return attr
    }

    func link(_ ino: UInt64, as name: Data, in directory: UInt64) throws {
        var attr = agentfs_attr()
        try name.lent { name in try check { agentfs_link(view, ino, directory, name, &attr, $0) } }
        // It is known under its other name already.
        forget(ino)
    }

    func remove(_ name: Data, from directory: UInt64, isDirectory: Bool) throws {
        try name.lent { name in
            let remove = isDirectory ? agentfs_rmdir : agentfs_unlink
            try check { remove(view, directory, name, $0) }
        }
    }

    func rename(_ name: Data, in directory: UInt64, to newName: Data, in newDirectory: UInt64) throws {
        try name.lent { name in
            try newName.lent { newName in
                let how = AGENTFS_RENAME_HOW_REPLACE.rawValue
                try check { agentfs_rename(view, directory, name, newDirectory, newName, how, $0) }
            }
        }
    }

    func set(_ set: agentfs_set_attr, on ino: UInt64) throws -> agentfs_attr {
        var (set, attr) = (set, agentfs_attr())
        try check { agentfs_setattr(view, ino, &set, &attr, $0) }
        return attr
    }

    func target(of ino: UInt64) throws -> Data {
        try value(most: 4096) { buffer, capacity, length, failure in
            agentfs_readlink(self.view, ino, buffer, capacity, length, failure)
        }
    }

    func read(_ ino: UInt64, at offset: UInt64, into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
        var length = 0
        let bytes = buffer.bindMemory(to: UInt8.self).baseAddress
        try check { agentfs_read(view, ino, offset, bytes, buffer.count, &length, $0) }
        return length
    }

    func write(_ ino: UInt64, at offset: UInt64, _ contents: Data) throws {
        try contents.lent { contents in try check { agentfs_write(view, ino, offset, contents, $0) } }
    }

    func space() throws -> agentfs_stat_fs {
        var stat = agentfs_stat_fs()
        try check { agentfs_statfs(view, &stat, $0) }
        return stat
    }

    /// The names behind a cookie, until `show` answers false.
    func list(_ directory: UInt64, after cookie: UInt64, show: Show) throws {
        try withoutActuallyEscaping(show) { show in
            var kept: Show = show
            try withUnsafeMutablePointer(to: &kept) { kept in
                try check { failure in
                    agentfs_readdir(view, directory, cookie, { context, entry in
                        let entry = entry!.pointee
                        let show = context!.assumingMemoryBound(to: Show.self).pointee
                        let name = entry.name.copied
                        return show(Entry(cookie: entry.cookie, ino: entry.ino, kind: entry.kind, name: name))
                    }, kept, failure)
                }
            }
        }
    }

    func xattr(_ name: Data, of ino: UInt64) throws -> Data {
        try name.lent { name in
            try value(most: 65536) { buffer, capacity, length, failure in
                agentfs_getxattr(self.view, ino, name, buffer, capacity, length, failure)
            }
        }
    }

    func setXattr(_ name: Data, to value: Data, of ino: UInt64, how: agentfs_set_xattr) throws {
        try name.lent { name in
            try value.lent { value in
                try check { agentfs_setxattr(view, ino, name, value, how.rawValue, $0) }
            }
        }
    }

    func removeXattr(_ name: Data, of ino: UInt64) throws {
        try name.lent { name in try check { agentfs_removexattr(view, ino, name, $0) } }
    }

    func xattrs(of ino: UInt64) throws -> [Data] {
        var names = [Data]()
        try withUnsafeMutablePointer(to: &names) { names in
            try check { failure in
                agentfs_listxattr(view, ino, { context, name in
                    context!.assumingMemoryBound(to: [Data].self).pointee.append(name.copied)
                    return true
                }, names, failure)
            }
        }
        return names
    }

    private typealias Fill = (
        UnsafeMutablePointer<UInt8>?, Int, UnsafeMutablePointer<Int>, UnsafeMutablePointer<agentfs_failure>
    ) -> Int32

    private func value(most: Int, _ fill: Fill) throws -> Data {
        var (data, length) = (Data(count: most), 0)
        try data.withUnsafeMutableBytes { bytes in
            let buffer = bytes.bindMemory(to: UInt8.self).baseAddress
            try check { fill(buffer, most, &length, $0) }
        }
        return data.prefix(length)
    }
}
