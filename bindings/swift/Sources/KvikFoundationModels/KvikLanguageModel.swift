// The framework's version 2 is that of the SDKs of 2026, which have the protocol; version 1 has the same name without it.
#if canImport(FoundationModels, _version: 2)

import Foundation
import FoundationModels
import Kvik

/// A model of kvik behind Apple's `LanguageModelSession`: sessions, tools, guided generation and streams as with Apple's own.
///
/// The value is light, as the protocol wants it: it says where the model lies. Sessions with equal values share one open
/// model of the process, since two would have the weights twice, and one process at a time writes a directory of blocks.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
public struct KvikLanguageModel: FoundationModels.LanguageModel {
    public typealias Executor = KvikExecutor

    /// Capabilities of the model behind it. What is not in the list is refused by the framework.
    public let capabilities: LanguageModelCapabilities

    /// Name under which `prewarm` pins what a session begins with. Sessions with different instructions that live beside
    /// each other want different names: a name stands for one prompt, and the one before it is unpinned.
    public let pinnedName: String

    /// What decides whether two sessions share an executor, and which model it opens.
    public let executorConfiguration: KvikExecutor.Configuration

    /// With a `diskDir` in the options, what `prewarm` computed is there after a kill.
    public init(
        path: String,
        options: ModelOptions,
        capabilities: [LanguageModelCapabilities.Capability] = [.guidedGeneration, .toolCalling],
        pinnedName: String = "session"
    ) {
        self.capabilities = LanguageModelCapabilities(capabilities)
        self.pinnedName = pinnedName
        executorConfiguration = KvikExecutor.Configuration(path: path, options: options)
    }

    /// The open model, for what the framework has no call for: memory pressure, the background, numbers.
    public func opened() async throws -> Kvik.Model {
        try await OpenModels.shared.model(executorConfiguration)
    }

    /// Closes the model of all sessions with this value; the next request opens it again.
    public func close() async throws {
        try await OpenModels.shared.close(executorConfiguration)
    }
}

/// Answers requests of sessions with a model of kvik.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
public struct KvikExecutor: LanguageModelExecutor {
    public typealias Model = KvikLanguageModel

    /// A model file, and what it is opened with.
    public struct Configuration: Hashable, Sendable {
        public let path: String
        public let options: ModelOptions
    }

    private let configuration: Configuration

    /// Opens nothing: sessions are made on the main thread.
    public init(configuration: Configuration) throws {
        self.configuration = configuration
    }

    /// Opens the model and pins what the session begins with: in RAM, and on disk, where the next process finds it and
    /// computes nothing. Like all prewarming it is an offer: a failure is that of the request that follows.
    public func prewarm(model: KvikLanguageModel, transcript: Transcript) {
        let configuration = self.configuration
        Task(priority: .utility) {
            let messages = try chatMessages(of: transcript)
            guard !messages.isEmpty else { return }
            let options = AnswerOptions(tools: try toolsJson(toolDefinitions(of: transcript)))
            let opened = try await OpenModels.shared.model(configuration)
            if try await !opened.isKept(model.pinnedName, messages, options: options) {
                try await opened.keep(model.pinnedName, messages, options: options)
            }
        }
    }

    public func respond(
        to request: LanguageModelExecutorGenerationRequest,
        model: KvikLanguageModel,
        streamingInto channel: LanguageModelExecutorGenerationChannel
    ) async throws {
        let opened = try await OpenModels.shared.model(configuration)
        let asked = try chatMessages(of: request)
        let options = try answerOptions(for: request)
        let entries = Entries()
        let taken = TakenReport()
        do {
            for try await piece in opened.chat(asked, options: options, onReport: { taken.report = $0 }) {
                try Task.checkCancellation()
                await channel.send(entries.event(for: piece))
            }
        } catch KvikError.PromptTooLong(let message) {
            throw try tooLong(message, asked, options, for: opened)
        }
        try Task.checkCancellation()
        if let report = taken.report {
            await channel.send(entries.usage(of: report))
        }
    }

    private func tooLong(
        _ message: String,
        _ asked: [Message],
        _ options: AnswerOptions,
        for model: Kvik.Model
    ) throws -> LanguageModelError {
        .contextSizeExceeded(
            .init(
                contextSize: Int(try model.contextTokens()),
                tokenCount: Int(try model.countTokens(asked, options: options)),
                debugDescription: message
            )
        )
    }
}

/// The models that are open in this process, each once.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private actor OpenModels {
    static let shared = OpenModels()

    /// Opening is a task, so that sessions that ask meanwhile wait for the same one.
    private var opening: [KvikExecutor.Configuration: Task<Kvik.Model, Error>] = [:]

    func model(_ configuration: KvikExecutor.Configuration) async throws -> Kvik.Model {
        let task = opening[configuration] ?? Task {
            try await Kvik.Model.open(configuration.path, options: configuration.options)
        }
        opening[configuration] = task
        do {
            return try await task.value
        } catch {
            // The next request tries again: the file may be there by then.
            if opening[configuration] == task { opening[configuration] = nil }
            throw error
        }
    }

    func close(_ configuration: KvikExecutor.Configuration) async throws {
        try await opening.removeValue(forKey: configuration)?.value.close()
    }
}

/// A place for a report that the reader of a stream writes before its end is read.
private final class TakenReport: @unchecked Sendable {
    var report: Report?
}

#endif
