import Foundation

/// An open model, for any number of threads and tasks; answers are computed together.
///
/// What takes time is async and blocks no thread of the caller's. Failures are a `KvikError`, after `close` `.Closed`.
public final class Model: Sendable {
    private let handle: ModelHandle

    private init(_ handle: ModelHandle) {
        self.handle = handle
    }

    /// Opens a GGUF file, or a directory as Hugging Face lays it out.
    public static func open(_ path: String, options: ModelOptions = ModelOptions()) async throws -> Model {
        try await Model(blocking { try ModelHandle.open(path: path, options: options) })
    }

    /// Opens a GGUF file in memory.
    public static func open(_ bytes: Data, options: ModelOptions = ModelOptions()) async throws -> Model {
        try await Model(blocking { try ModelHandle.openBytes(bytes: bytes, options: options) })
    }

    /// Answers messages, in the form of the model's chat template. A reader that ends early, or whose task is cancelled,
    /// ends the answer at the next step of the model. `onReport` learns what the answer took, after its last piece.
    public func chat(
        _ messages: [Message],
        options: AnswerOptions = AnswerOptions(),
        onReport: @escaping @Sendable (Report) -> Void = { _ in }
    ) -> AsyncThrowingStream<Piece, Error> {
        stream(.messages(messages: messages), options, onReport)
    }

    /// Continues a text as it is. Names of control tokens in it stand for these tokens: texts of users belong into messages.
    public func generate(
        _ text: String,
        options: AnswerOptions = AnswerOptions(),
        onReport: @escaping @Sendable (Report) -> Void = { _ in }
    ) -> AsyncThrowingStream<Piece, Error> {
        stream(.text(text: text), options, onReport)
    }

    /// The whole answer to messages.
    public func answer(_ messages: [Message], options: AnswerOptions = AnswerOptions()) async throws -> Reply {
        let taken = Taken()
        var (text, reasoning, calls) = ("", "", [ToolCall]())
        for try await piece in chat(messages, options: options, onReport: { taken.report = $0 }) {
            switch piece {
            case let .reasoning(more): reasoning += more
            case let .text(more): text += more
            case let .call(call): calls.append(call)
            }
        }
        // A stream that is cancelled ends without a failure of its own.
        guard let report = taken.report else { throw CancellationError() }
        return Reply(text: text, reasoning: reasoning, calls: calls, report: report)
    }

    /// What a text means to the model, as a vector of length 1.
    public func embed(_ text: String) async throws -> [Float] {
        try await blocking { [handle] in floats(try handle.embed(text: text).vector) }
    }

    /// How likely each token of the vocabulary is to come next, or each of `tokens`: logits, before sampling.
    public func logits(_ prompt: Prompt, tokens: [Int32]? = nil) async throws -> [Float] {
        try await blocking { [handle] in floats(try handle.logits(prompt: prompt, tokens: tokens).values) }
    }

    /// The conversation of this name or id; a new one, where nothing has the name, that is kept once something was answered
    /// in it. Its `say` gives an answer in the caller's hands: `next` blocks for pieces, `cancel` ends it.
    public func conversation(_ reference: String) throws -> ConversationHandle {
        try handle.conversation(reference: reference)
    }

    /// All conversations, those that were changed last first.
    public func conversations() throws -> [ConversationInfo] {
        try handle.conversations()
    }

    /// Tokens of messages.
    public func countTokens(_ messages: [Message]) throws -> Int64 {
        try handle.countTokens(prompt: .messages(messages: messages))
    }

    /// What messages would find in the cache now, and why not more. Computes and changes nothing.
    public func explain(_ messages: [Message]) async throws -> Explanation {
        try await blocking { [handle] in try handle.explain(prompt: .messages(messages: messages)) }
    }

    /// Keeps a system prompt computed under a name, in RAM and on disk.
    @discardableResult
    public func cacheSystemPrompt(_ id: String, _ prompt: String) async throws -> KeptState {
        try await blocking { [handle] in try handle.keepPrompt(id: id, prompt: systemPrompt(prompt)) }
    }

    /// Whether this system prompt is kept under a name, and no token of it would have to be computed.
    public func isValid(_ id: String, _ prompt: String) async throws -> Bool {
        try await blocking { [handle] in try handle.isKept(id: id, prompt: systemPrompt(prompt)).isWarm }
    }

    /// Forgets what is kept under a name. Whether there was such a name.
    @discardableResult
    public func invalidate(_ id: String) async throws -> Bool {
        try await blocking { [handle] in try handle.forgetPrompt(id: id) }
    }

    /// The engine's numbers after its last step.
    public func stats() throws -> Stats {
        try handle.stats()
    }

    /// Releases memory to the system, in about 50 ms: for `didReceiveMemoryWarning`.
    @discardableResult
    public func onMemoryPressure(_ level: MemoryPressure) throws -> Released {
        try handle.onMemoryPressure(level: level)
    }

    /// Gets ready to be killed, in about 100 ms: cancels all answers and makes durable what was computed. For
    /// `applicationDidEnterBackground`. Then no thread of the model runs until something is asked again.
    @discardableResult
    public func onBackground() throws -> Flushed {
        try handle.onBackground()
    }

    /// Cancels all answers, gives the disk up to two seconds, and stops all threads.
    public func close() throws {
        _ = try handle.shutDown()
    }

    private func stream(
        _ prompt: Prompt,
        _ options: AnswerOptions,
        _ onReport: @escaping @Sendable (Report) -> Void
    ) -> AsyncThrowingStream<Piece, Error> {
        AsyncThrowingStream { continuation in
            do {
                let answer = try handle.generate(prompt: prompt, options: options)
                // A reader that is gone is noticed at once, also while nothing arrives.
                continuation.onTermination = { _ in answer.cancel() }
                reading.async { read(answer, continuation, onReport) }
            } catch {
                continuation.finish(throwing: error)
            }
        }
    }
}

/// A whole answer: its text, what the model thought before it, the tools that it calls, and what it took.
public struct Reply: Sendable {
    public let text: String
    public let reasoning: String
    public let calls: [ToolCall]
    public let report: Report
}

extension Message {
    /// What the program says, to the model.
    public static func system(_ content: String) -> Message { Message(role: .system, content: content) }

    /// What the user says.
    public static func user(_ content: String) -> Message { Message(role: .user, content: content) }

    /// What the model has said.
    public static func assistant(_ content: String) -> Message { Message(role: .assistant, content: content) }
}

extension Piece {
    /// The text of a piece; of a call none.
    public var text: String {
        switch self {
        case let .reasoning(text), let .text(text): return text
        case .call: return ""
        }
    }
}

extension KeptState {
    /// Whether it is kept, and no token of it would have to be computed, but for the last one.
    public var isWarm: Bool {
        if case let .kept(_, _, _, warm) = self { return warm }
        return false
    }
}

/// Numbers that have crossed as bytes.
private func floats(_ bytes: Data) -> [Float] {
    stride(from: 0, to: bytes.count, by: 4).map { at in
        let bits = (0..<4).reduce(UInt32(0)) { $0 | UInt32(bytes[bytes.startIndex + at + $1]) << (8 * $1) }
        return Float(bitPattern: bits)
    }
}

/// Threads that may block: Swift's own for tasks are as few as there are cores.
private let reading = DispatchQueue(label: "dev.kvik.reading", attributes: .concurrent)

/// A place for a report that one task writes before another one reads it.
private final class Taken: @unchecked Sendable {
    var report: Report?
}

private func systemPrompt(_ prompt: String) -> Prompt {
    .messages(messages: [.system(prompt)])
}

private func blocking<T: Sendable>(_ call: @escaping @Sendable () throws -> T) async throws -> T {
    try await withCheckedThrowingContinuation { continuation in
        reading.async { continuation.resume(with: Result(catching: call)) }
    }
}

private func read(
    _ answer: AnswerHandle,
    _ continuation: AsyncThrowingStream<Piece, Error>.Continuation,
    _ onReport: (Report) -> Void
) {
    do {
        while case let pieces = try answer.next(), !pieces.isEmpty {
            pieces.forEach { continuation.yield($0) }
        }
        if let report = answer.report() {
            onReport(report)
        }
        continuation.finish()
    } catch {
        continuation.finish(throwing: error)
    }
}
