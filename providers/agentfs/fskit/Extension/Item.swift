// Files as the system knows them, and their attributes in its words.

import CAgentFS
import FSKit
import Foundation

/// A file that the system knows: one of these for each inode, and one count in the tree.
@available(macOS 26.0, *)
final class Item: FSItem {
    let ino: UInt64
    let isDirectory: Bool
    /// The directory in which it was seen last. Guarded by `Items`.
    fileprivate(set) var parent: UInt64

    init(_ attr: agentfs_attr, parent: UInt64) {
        ino = attr.ino
        isDirectory = attr.kind == AGENTFS_KIND_DIRECTORY.rawValue
        self.parent = parent
        super.init()
    }
}

/// All that the system knows, until it gives them back.
@available(macOS 26.0, *)
final class Items: @unchecked Sendable {
    private let lock = NSLock()
    private var known = [UInt64: Item]()

    /// The item of an inode that the tree has just counted. The count is given back if there was one already.
    func item(_ attr: agentfs_attr, in parent: UInt64, of tree: Tree) -> Item {
        lock.lock()
        defer { lock.unlock() }
        if let item = known[attr.ino] {
            item.parent = parent
            tree.forget(attr.ino)
            return item
        }
        let item = Item(attr, parent: parent)
        known[attr.ino] = item
        return item
    }

    func reclaim(_ item: Item, of tree: Tree) {
        lock.lock()
        defer { lock.unlock() }
        if known[item.ino] === item {
            known[item.ino] = nil
            tree.forget(item.ino)
        }
    }

    func moved(_ item: Item, to parent: UInt64) {
        lock.lock()
        defer { lock.unlock() }
        item.parent = parent
    }

    func parent(of item: Item) -> UInt64 {
        lock.lock()
        defer { lock.unlock() }
        return item.parent
    }
}

/// The system keeps the lowest numbers for itself; the tree has its root at 1 and others right behind it.
@available(macOS 26.0, *)
func identifier(_ ino: UInt64) -> FSItem.Identifier {
    ino == UInt64(AGENTFS_ROOT) ? .rootDirectory : FSItem.Identifier(rawValue: ino &+ 16) ?? .invalid
}

@available(macOS 26.0, *)
func itemType(_ kind: UInt32) -> FSItem.ItemType {
    switch kind {
    case AGENTFS_KIND_FILE.rawValue: .file
    case AGENTFS_KIND_DIRECTORY.rawValue: .directory
    case AGENTFS_KIND_SYMLINK.rawValue: .symlink
    case AGENTFS_KIND_FIFO.rawValue: .fifo
    case AGENTFS_KIND_SOCKET.rawValue: .socket
    case AGENTFS_KIND_CHAR_DEVICE.rawValue: .charDevice
    case AGENTFS_KIND_BLOCK_DEVICE.rawValue: .blockDevice
    default: .unknown
    }
}

private func typeBits(_ kind: UInt32) -> UInt32 {
    let bits: mode_t =
        switch kind {
        case AGENTFS_KIND_DIRECTORY.rawValue: S_IFDIR
        case AGENTFS_KIND_SYMLINK.rawValue: S_IFLNK
        case AGENTFS_KIND_FIFO.rawValue: S_IFIFO
        case AGENTFS_KIND_SOCKET.rawValue: S_IFSOCK
        case AGENTFS_KIND_CHAR_DEVICE.rawValue: S_IFCHR
        case AGENTFS_KIND_BLOCK_DEVICE.rawValue: S_IFBLK
        default: S_IFREG
        }
    return UInt32(bits)
}

private func time(_ time: agentfs_time) -> timespec {
    timespec(tv_sec: Int(time.seconds), tv_nsec: Int(time.nanoseconds))
}

private func time(_ time: timespec) -> agentfs_time {
    agentfs_time(seconds: Int64(time.tv_sec), nanoseconds: UInt32(clamping: time.tv_nsec), reserved: 0)
}

/// All attributes, whichever were asked for.
@available(macOS 26.0, *)
func describe(_ attr: agentfs_attr, parent: UInt64) -> FSItem.Attributes {
    let told = FSItem.Attributes()
    told.type = itemType(attr.kind)
    told.mode = typeBits(attr.kind) | attr.mode
    told.linkCount = attr.nlink
    told.uid = attr.uid
    told.gid = attr.gid
    told.flags = 0
    told.size = attr.size
    told.allocSize = attr.blocks &* 512
    told.fileID = identifier(attr.ino)
    told.parentID = attr.ino == UInt64(AGENTFS_ROOT) ? .parentOfRoot : identifier(parent)
    told.accessTime = time(attr.atime)
    told.modifyTime = time(attr.mtime)
    told.changeTime = time(attr.ctime)
    told.birthTime = time(attr.btime)
    return told
}

/// What of a request the tree can do; `consumedAttributes` says so to the system.
@available(macOS 26.0, *)
func asked(_ request: FSItem.SetAttributesRequest, isFile: Bool) -> agentfs_set_attr {
    var set = agentfs_set_attr()
    var consumed: FSItem.Attribute = []
    func take(_ attribute: FSItem.Attribute, _ bit: Int32, _ take: (inout agentfs_set_attr) -> Void) {
        guard request.isValid(attribute) else { return }
        set.set |= UInt32(bit)
        take(&set)
        consumed.insert(attribute)
    }
    take(.mode, AGENTFS_SET_MODE) { $0.mode = request.mode & 0o7777 }
    take(.uid, AGENTFS_SET_UID) { $0.uid = request.uid }
    take(.gid, AGENTFS_SET_GID) { $0.gid = request.gid }
    take(.accessTime, AGENTFS_SET_ATIME) { $0.atime = time(request.accessTime) }
    take(.modifyTime, AGENTFS_SET_MTIME) { $0.mtime = time(request.modifyTime) }
    if isFile {
        take(.size, AGENTFS_SET_SIZE) { $0.size = request.size }
    } else if request.isValid(.size) {
        // To be ignored, without an error.
        consumed.insert(.size)
    }
    request.consumedAttributes = consumed
    return set
}
