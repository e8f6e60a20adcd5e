// swift-tools-version:5.9
import Foundation
import PackageDescription

// Where README.md has put an xcframework, for phones; else a shared library that the linker finds, as on a Mac or Linux.
let framework = "Kvik.xcframework"
let directory = URL(fileURLWithPath: #filePath).deletingLastPathComponent().path
let hasFramework = FileManager.default.fileExists(atPath: directory + "/" + framework)

let native: Target = hasFramework
    ? .binaryTarget(name: "KvikFFI", path: framework)
    : .systemLibrary(name: "KvikFFI", path: "Sources/KvikFFI/include")

let package = Package(
    name: "Kvik",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [
        .library(name: "Kvik", targets: ["Kvik"]),
        // Behind Apple's sessions, from the systems of 2026 on; empty before.
        .library(name: "KvikFoundationModels", targets: ["KvikFoundationModels"]),
    ],
    targets: [
        native,
        .target(
            name: "Kvik",
            dependencies: ["KvikFFI"],
            linkerSettings: hasFramework ? [] : [.linkedLibrary("kvik_uniffi")]
        ),
        .target(name: "KvikFoundationModels", dependencies: ["Kvik"]),
        .testTarget(name: "KvikTests", dependencies: ["Kvik"]),
    ]
)
