// What the system asks of a mounted branch. Permissions are the system's to check: it has owner and mode.

import CAgentFS
import FSKit
import Foundation
import os

private let logger = Logger(subsystem: "AgentFS", category: "volume")

@available(macOS 26.0, *)
final class Volume: FSVolume {
    private let store: URL
    private let readOnly: Bool
    private var lower: URL?
    private var opened: Tree?
    fileprivate let items = Items()

    init(store: URL, readOnly: Bool, identifier: UUID) {
        self.store = store
        self.readOnly = readOnly
        super.init(
            volumeID: FSVolume.Identifier(uuid: identifier), volumeName: FSFileName(string: store.lastPathComponent))
    }

    /// There between activation and deactivation, as all calls are that need it.
    fileprivate func tree() throws -> Tree {
        guard let opened else { throw Failure(AGENTFS_CODE_STALE, ENXIO, "not active") }
        return opened
    }

    /// `-l`: the lower directory; `-b`: the branch's number.
    fileprivate func open(_ options: FSTaskOptions) throws -> Item {
        guard let lower = options.url(forOption: "l") else { throw Failure.argument }
        let words = options.taskOptions
        var branch: UInt32?
        if let at = words.firstIndex(of: "-b") {
            guard at + 1 < words.count, let number = UInt32(words[at + 1]) else { throw Failure.argument }
            branch = number
        }
        _ = store.startAccessingSecurityScopedResource()
        _ = lower.startAccessingSecurityScopedResource()
        self.lower = lower
        let tree = try Tree(store: store.path, lower: lower.path, branch: branch, readOnly: readOnly)
        opened = tree
        let root = UInt64(AGENTFS_ROOT)
        return items.item(try tree.attributes(root), in: root, of: tree)
    }

    fileprivate func close() {
        opened = nil
        lower?.stopAccessingSecurityScopedResource()
        store.stopAccessingSecurityScopedResource()
        lower = nil
    }

    /// Who owns what is made, if the request does not say: as its directory.
    fileprivate func owner(
        _ request: FSItem.SetAttributesRequest, in directory: Item, mode: UInt32
    ) throws -> agentfs_owner {
        let above = try tree().attributes(directory.ino)
        var owner = agentfs_owner(mode: mode, uid: above.uid, gid: above.gid)
        var consumed: FSItem.Attribute = []
        if request.isValid(.mode) {
            owner.mode = request.mode & 0o7777
            consumed.insert(.mode)
        }
        if request.isValid(.uid) {
            owner.uid = request.uid
            consumed.insert(.uid)
        }
        if request.isValid(.gid) {
            owner.gid = request.gid
            consumed.insert(.gid)
        }
        request.consumedAttributes = consumed
        return owner
    }
}

/// Ours, or the request makes no sense.
@available(macOS 26.0, *)
private func ours(_ item: FSItem) throws -> Item {
    guard let item = item as? Item else { throw Failure.argument }
    return item
}

private func told(_ error: any Error) -> any Error {
    guard let failure = error as? Failure else { return error }
    if failure.code == Int32(AGENTFS_CODE_INTERNAL.rawValue) || failure.code == Int32(AGENTFS_CODE_DATA_LOSS.rawValue) {
        logger.error("\(failure.message, privacy: .public)")
    }
    return fs_errorForPOSIXError(failure.system)
}

@available(macOS 26.0, *)
extension Volume: FSVolume.PathConfOperations {
    var maximumLinkCount: Int { 65_000 }
    var maximumNameLength: Int { 255 }
    var restrictsOwnershipChanges: Bool { true }
    var truncatesLongNames: Bool { false }
    var maximumXattrSize: Int { 65_536 }
    var maximumFileSize: UInt64 { 1 << 62 }
}

@available(macOS 26.0, *)
extension Volume: FSVolume.Operations {
    var supportedVolumeCapabilities: FSVolume.SupportedCapabilities {
        let capabilities = FSVolume.SupportedCapabilities()
        capabilities.supports64BitObjectIDs = true
        capabilities.supportsSymbolicLinks = true
        capabilities.supportsHardLinks = true
        capabilities.supportsSparseFiles = true
        capabilities.supports2TBFiles = true
        capabilities.supportsFastStatFS = true
        capabilities.doesNotSupportImmutableFiles = true
        capabilities.caseFormat = .sensitive
        return capabilities
    }

    var volumeStatistics: FSStatFSResult {
        let result = FSStatFSResult(fileSystemTypeName: "agentfs")
        guard let stat = try? tree().space() else { return result }
        let block: UInt64 = 4096
        result.blockSize = Int(block)
        result.ioSize = 1 << 20
        result.totalBytes = stat.total
        result.availableBytes = stat.free
        result.freeBytes = stat.free
        result.usedBytes = stat.total - min(stat.free, stat.total)
        result.totalBlocks = stat.total / block
        result.availableBlocks = stat.free / block
        result.freeBlocks = stat.free / block
        result.usedBlocks = result.usedBytes / block
        result.totalFiles = stat.free_inodes
        result.freeFiles = stat.free_inodes
        return result
    }

    func activate(options: FSTaskOptions, replyHandler reply: @escaping (FSItem?, (any Error)?) -> Void) {
        do {
            reply(try open(options), nil)
        } catch {
            logger.error("cannot open: \((error as? Failure)?.message ?? String(describing: error), privacy: .public)")
            close()
            reply(nil, told(error))
        }
    }

    func deactivate(options: FSDeactivateOptions = [], replyHandler reply: @escaping ((any Error)?) -> Void) {
        close()
        reply(nil)
    }

    func mount(options: FSTaskOptions, replyHandler reply: @escaping ((any Error)?) -> Void) {
        reply(nil)
    }

    func unmount(replyHandler reply: @escaping () -> Void) {
        // Nothing is kept back here but what a sync takes to the disk.
        try? opened?.sync()
        reply()
    }

    func synchronize(flags: FSSyncFlags, replyHandler reply: @escaping ((any Error)?) -> Void) {
        do {
            try tree().sync()
            reply(nil)
        } catch {
            reply(told(error))
        }
    }

    func getAttributes(
        _ desired: FSItem.GetAttributesRequest, of item: FSItem,
        replyHandler reply: @escaping (FSItem.Attributes?, (any Error)?) -> Void
    ) {
        do {
            let item = try ours(item)
            reply(describe(try tree().attributes(item.ino), parent: items.parent(of: item)), nil)
        } catch {
            reply(nil, told(error))
        }
    }

    func setAttributes(
        _ request: FSItem.SetAttributesRequest, on item: FSItem,
        replyHandler reply: @escaping (FSItem.Attributes?, (any Error)?) -> Void
    ) {
        do {
            let item = try ours(item)
            let readOnly: [FSItem.Attribute] = [.type, .linkCount, .allocSize, .fileID, .parentID]
            guard !readOnly.contains(where: request.isValid) else { throw Failure.argument }
            let before = try tree().attributes(item.ino)
            let set = asked(request, isFile: before.kind == AGENTFS_KIND_FILE.rawValue)
            let after = set.set == 0 ? before : try tree().set(set, on: item.ino)
            reply(describe(after, parent: items.parent(of: item)), nil)
        } catch {
            reply(nil, told(error))
        }
    }

    func lookupItem(
        named name: FSFileName, inDirectory directory: FSItem,
        replyHandler reply: @escaping (FSItem?, FSFileName?, (any Error)?) -> Void
    ) {
        do {
            let (tree, parent) = (try self.tree(), try ours(directory).ino)
            reply(items.item(try tree.lookup(name.data, in: parent), in: parent, of: tree), name, nil)
        } catch {
            reply(nil, nil, told(error))
        }
    }

    func reclaimItem(_ item: FSItem, replyHandler reply: @escaping ((any Error)?) -> Void) {
        if let item = item as? Item, let opened {
            items.reclaim(item, of: opened)
        }
        reply(nil)
    }

    func readSymbolicLink(_ item: FSItem, replyHandler reply: @escaping (FSFileName?, (any Error)?) -> Void) {
        do {
            reply(FSFileName(data: try tree().target(of: ours(item).ino)), nil)
        } catch {
            reply(nil, told(error))
        }
    }

    func createItem(
        named name: FSFileName, type: FSItem.ItemType, inDirectory directory: FSItem,
        attributes request: FSItem.SetAttributesRequest,
        replyHandler reply: @escaping (FSItem?, FSFileName?, (any Error)?) -> Void
    ) {
        do {
            let (tree, directory) = (try self.tree(), try ours(directory))
            let kinds: [FSItem.ItemType: agentfs_kind] = [
                .file: AGENTFS_KIND_FILE, .directory: AGENTFS_KIND_DIRECTORY,
                .fifo: AGENTFS_KIND_FIFO, .socket: AGENTFS_KIND_SOCKET,
            ]
            guard let kind = kinds[type] else { throw Failure.argument }
            let owner = try self.owner(request, in: directory, mode: type == .directory ? 0o755 : 0o644)
            let attr = try tree.make(name.data, in: directory.ino, kind: kind, owner: owner)
            reply(items.item(attr, in: directory.ino, of: tree), name, nil)
        } catch {
            reply(nil, nil, told(error))
        }
    }

    func createSymbolicLink(
        named name: FSFileName, inDirectory directory: FSItem, attributes request: FSItem.SetAttributesRequest,
        linkContents contents: FSFileName, replyHandler reply: @escaping (FSItem?, FSFileName?, (any Error)?) -> Void
    ) {
        do {
            let (tree, directory) = (try self.tree(), try ours(directory))
            let owner = try self.owner(request, in: directory, mode: 0o777)
            let attr = try tree.symlink(name.data, in: directory.ino, to: contents.data, owner: owner)
            reply(items.item(attr, in: directory.ino, of: tree), name, nil)
        } catch {
            reply(nil, nil, told(error))
        }
    }

    func createLink(
        to item: FSItem, named name: FSFileName, inDirectory directory: FSItem,
        replyHandler reply: @escaping (FSFileName?, (any Error)?) -> Void
    ) {
        do {
            try tree().link(ours(item).ino, as: name.data, in: ours(directory).ino)
            reply(name, nil)
        } catch {
            reply(nil, told(error))
        }
    }

    func removeItem(
        _ item: FSItem, named name: FSFileName, fromDirectory directory: FSItem,
        replyHandler reply: @escaping ((any Error)?) -> Void
    ) {
        do {
            // The file itself goes when the system reclaims the item.
            try tree().remove(name.data, from: ours(directory).ino, isDirectory: ours(item).isDirectory)
            reply(nil)
        } catch {
            reply(told(error))
        }
    }

    func renameItem(
        _ item: FSItem, inDirectory from: FSItem, named name: FSFileName, to newName: FSFileName,
        inDirectory to: FSItem, overItem: FSItem?, replyHandler reply: @escaping (FSFileName?, (any Error)?) -> Void
    ) {
        do {
            let (item, to) = (try ours(item), try ours(to))
            try tree().rename(name.data, in: ours(from).ino, to: newName.data, in: to.ino)
            items.moved(item, to: to.ino)
            reply(newName, nil)
        } catch {
            reply(nil, told(error))
        }
    }

    /// Cookies are the tree's: 3 or more; 1 and 2 stand behind `.` and `..`. They stay good whatever changes in the directory, and so
    /// does the verifier.
    func enumerateDirectory(
        _ directory: FSItem, startingAt cookie: FSDirectoryCookie, verifier: FSDirectoryVerifier,
        attributes request: FSItem.GetAttributesRequest?, packer: FSDirectoryEntryPacker,
        replyHandler reply: @escaping (FSDirectoryVerifier, (any Error)?) -> Void
    ) {
        let same = FSDirectoryVerifier(1)
        do {
            let (tree, directory) = (try self.tree(), try ours(directory))
            if request == nil {
                for (number, name, ino) in [(1, ".", directory.ino), (2, "..", items.parent(of: directory))]
                where cookie.rawValue < number {
                    let packed = packer.packEntry(
                        name: FSFileName(string: name), itemType: .directory, itemID: identifier(ino),
                        nextCookie: FSDirectoryCookie(UInt64(number)), attributes: nil)
                    guard packed else { return reply(same, nil) }
                }
            }
            try tree.list(directory.ino, after: cookie.rawValue) { entry in
                var attributes: FSItem.Attributes?
                // One that was changed below is a name all the same; it has no attributes.
                if request != nil, let attr = try? tree.lookup(entry.name, in: directory.ino) {
                    tree.forget(attr.ino)
                    attributes = describe(attr, parent: directory.ino)
                }
                return packer.packEntry(
                    name: FSFileName(data: entry.name), itemType: itemType(entry.kind), itemID: identifier(entry.ino),
                    nextCookie: FSDirectoryCookie(entry.cookie), attributes: attributes)
            }
            reply(same, nil)
        } catch {
            reply(same, told(error))
        }
    }
}

@available(macOS 26.0, *)
extension Volume: FSVolume.ReadWriteOperations {
    func read(
        from item: FSItem, at offset: off_t, length: Int, into buffer: FSMutableFileDataBuffer,
        replyHandler reply: @escaping (Int, (any Error)?) -> Void
    ) {
        do {
            let (tree, ino) = (try self.tree(), try ours(item).ino)
            guard offset >= 0, length >= 0 else { throw Failure.argument }
            let count = try buffer.withUnsafeMutableBytes { bytes in
                let room = UnsafeMutableRawBufferPointer(rebasing: bytes.prefix(length))
                return try tree.read(ino, at: UInt64(offset), into: room)
            }
            reply(count, nil)
        } catch {
            reply(0, told(error))
        }
    }

    func write(
        contents: Data, to item: FSItem, at offset: off_t, replyHandler reply: @escaping (Int, (any Error)?) -> Void
    ) {
        do {
            guard offset >= 0 else { throw Failure.argument }
            try tree().write(ours(item).ino, at: UInt64(offset), contents)
            reply(contents.count, nil)
        } catch {
            reply(0, told(error))
        }
    }
}

@available(macOS 26.0, *)
extension Volume: FSVolume.XattrOperations {
    func getXattr(
        named name: FSFileName, of item: FSItem, replyHandler reply: @escaping (Data?, (any Error)?) -> Void
    ) {
        do {
            reply(try tree().xattr(name.data, of: ours(item).ino), nil)
        } catch {
            reply(nil, told(error))
        }
    }

    func setXattr(
        named name: FSFileName, to value: Data?, on item: FSItem, policy: FSVolume.SetXattrPolicy,
        replyHandler reply: @escaping ((any Error)?) -> Void
    ) {
        do {
            let (tree, ino, value) = (try self.tree(), try ours(item).ino, value ?? Data())
            switch policy {
            case .delete: try tree.removeXattr(name.data, of: ino)
            case .mustCreate: try tree.setXattr(name.data, to: value, of: ino, how: AGENTFS_SET_XATTR_CREATE)
            case .mustReplace: try tree.setXattr(name.data, to: value, of: ino, how: AGENTFS_SET_XATTR_REPLACE)
            default: try tree.setXattr(name.data, to: value, of: ino, how: AGENTFS_SET_XATTR_ANY)
            }
            reply(nil)
        } catch {
            reply(told(error))
        }
    }

    func listXattrs(of item: FSItem, replyHandler reply: @escaping ([FSFileName]?, (any Error)?) -> Void) {
        do {
            reply(try tree().xattrs(of: ours(item).ino).map(FSFileName.init(data:)), nil)
        } catch {
            reply(nil, told(error))
        }
    }
}
