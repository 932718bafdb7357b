// Where the system begins: a store is recognised, and becomes a volume.

import FSKit
import Foundation

@main
@available(macOS 26.0, *)
struct AgentFSExtension: UnaryFileSystemExtension {
    var fileSystem: FSUnaryFileSystem & FSUnaryFileSystemOperations {
        FileSystem()
    }
}

/// The resource is the directory of a store.
@available(macOS 26.0, *)
final class FileSystem: FSUnaryFileSystem, FSUnaryFileSystemOperations {
    func probeResource(resource: FSResource, replyHandler: @escaping (FSProbeResult?, (any Error)?) -> Void) {
        guard let store = (resource as? FSPathURLResource)?.url else {
            return replyHandler(.notRecognized, nil)
        }
        let access = store.startAccessingSecurityScopedResource()
        defer { if access { store.stopAccessingSecurityScopedResource() } }
        let format = try? String(contentsOf: store.appendingPathComponent("format"), encoding: .utf8)
        guard let format, format.hasPrefix("agentfs ") else {
            return replyHandler(.notRecognized, nil)
        }
        let container = FSContainerIdentifier(uuid: identifier(of: store))
        replyHandler(.usable(name: store.lastPathComponent, containerID: container), nil)
    }

    func loadResource(
        resource: FSResource, options: FSTaskOptions, replyHandler: @escaping (FSVolume?, (any Error)?) -> Void
    ) {
        guard let store = (resource as? FSPathURLResource)?.url else {
            return replyHandler(nil, fs_errorForPOSIXError(EINVAL))
        }
        containerStatus = .ready
        let readOnly = options.taskOptions.contains("--rdonly")
        replyHandler(Volume(store: store, readOnly: readOnly, identifier: identifier(of: store)), nil)
    }

    func unloadResource(
        resource: FSResource, options: FSTaskOptions, replyHandler reply: @escaping ((any Error)?) -> Void
    ) {
        reply(nil)
    }
}

/// The same for the same path: two FNV-1a hashes of it.
private func identifier(of store: URL) -> UUID {
    var bytes = [UInt8]()
    for begin in [0xcbf2_9ce4_8422_2325, 0x8422_2325_cbf2_9ce4] as [UInt64] {
        let hash = store.standardizedFileURL.path.utf8.reduce(begin) { ($0 ^ UInt64($1)) &* 0x0100_0000_01b3 }
        withUnsafeBytes(of: hash.bigEndian) { bytes.append(contentsOf: $0) }
    }
    return bytes.withUnsafeBytes { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
}
