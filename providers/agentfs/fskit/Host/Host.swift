// The application that an extension has to come in. It does nothing but say where to switch it on.

import Foundation

@main
struct Host {
    static func main() {
        print("Switch AgentFS on in System Settings, General, Login Items & Extensions, File System Extensions.")
    }
}
