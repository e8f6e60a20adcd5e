import Foundation

/// An open model, for any number of threads and tasks; answers are computed together.
///
/// Calls that take time are async and block no thread of the caller. Failures are a `KvikError`; after `close`, `.Closed`.
public final class Model: Sendable {
    private let handle: ModelHandle

    private init(_ handle: ModelHandle) {
        self.handle = handle
    }

    /// Opens a GGUF file, or a directory in Hugging Face's layout.
    public static func open(_ path: String, options: ModelOptions = ModelOptions()) async throws -> Model {
        try await Model(blocking { try ModelHandle.open(path: path, options: options) })
    }

    /// Opens a GGUF file in memory.
    public static func open(_ bytes: Data, options: ModelOptions = ModelOptions()) async throws -> Model {
        try await Model(blocking { try ModelHandle.openBytes(bytes: bytes, options: options) })
    }

    /// Answers messages, rendered by the model's chat template. A reader that ends early, or whose task is cancelled, ends
    /// the answer at the next step of the model. `onReport` receives the report after the last piece.
    public func chat(
        _ messages: [Message],
        options: AnswerOptions = AnswerOptions(),
        onReport: @escaping @Sendable (Report) -> Void = { _ in }
    ) -> AsyncThrowingStream<Piece, Error> {
        stream(.messages(messages: messages), options, onReport)
    }

    /// Continues a text as it is. Names of control tokens in it are parsed as these tokens, so users' texts belong in
    /// messages.
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

    /// Embedding of a text: a vector of length 1.
    public func embed(_ text: String) async throws -> [Float] {
        try await blocking { [handle] in floats(try handle.embed(text: text).vector) }
    }

    /// Logits of the next token, before sampling: of the whole vocabulary, or of `tokens` in their order.
    public func logits(
        _ prompt: Prompt,
        tokens: [Int32]? = nil,
        options: AnswerOptions = AnswerOptions()
    ) async throws -> [Float] {
        try await blocking { [handle] in
            floats(try handle.logits(prompt: prompt, tokens: tokens, options: options).values)
        }
    }

    /// Opens the conversation with this name or id; if no conversation has the name, a new one is stored once a turn was
    /// answered in it. The caller reads the answer of its `say`: `next` blocks for pieces, `cancel` ends it.
    public func conversation(_ reference: String) throws -> ConversationHandle {
        try handle.conversation(reference: reference)
    }

    /// All conversations, the most recently changed first.
    public func conversations() throws -> [ConversationInfo] {
        try handle.conversations()
    }

    /// True if conversations are stored on the disk. If not, they end with the model: without a directory for them, or
    /// because another process stores its conversations there.
    public func conversationsAreStored() throws -> Bool {
        try handle.conversationsAreStored()
    }

    /// Tokens of a prompt and its answer together.
    public func contextTokens() throws -> Int64 {
        try handle.contextTokens()
    }

    /// Tokenizes a text on its own. Names of control tokens in it are parsed as these tokens.
    public func tokens(_ text: String) throws -> [Int32] {
        try handle.tokens(text: text)
    }

    /// Number of tokens of messages, as an answer with these options reads them.
    public func countTokens(_ messages: [Message], options: AnswerOptions = AnswerOptions()) throws -> Int64 {
        try handle.countTokens(prompt: .messages(messages: messages), options: options)
    }

    /// Reports what messages would find in the cache now, and why not more. Computes and changes nothing.
    public func explain(
        _ messages: [Message],
        options: AnswerOptions = AnswerOptions()
    ) async throws -> Explanation {
        try await blocking { [handle] in
            try handle.explain(prompt: .messages(messages: messages), options: options)
        }
    }

    /// Pins a computed system prompt under a name, in RAM and on disk. `options` are those of the answers: a template may
    /// write tools and reasoning before the messages.
    @discardableResult
    public func cacheSystemPrompt(
        _ id: String,
        _ prompt: String,
        options: AnswerOptions = AnswerOptions()
    ) async throws -> KeptState {
        try await keep(id, [.system(prompt)], options: options)
    }

    /// Returns whether this system prompt is pinned under a name and cached, but for its last token.
    public func isValid(
        _ id: String,
        _ prompt: String,
        options: AnswerOptions = AnswerOptions()
    ) async throws -> Bool {
        try await isKept(id, [.system(prompt)], options: options)
    }

    /// Pins computed messages that other chats begin with under a name, as `cacheSystemPrompt` does a system prompt.
    @discardableResult
    public func keep(
        _ id: String,
        _ messages: [Message],
        options: AnswerOptions = AnswerOptions()
    ) async throws -> KeptState {
        try await blocking { [handle] in
            try handle.keepPrompt(id: id, prompt: .messages(messages: messages), options: options)
        }
    }

    /// Returns whether these messages are pinned under a name and cached, but for their last token.
    public func isKept(
        _ id: String,
        _ messages: [Message],
        options: AnswerOptions = AnswerOptions()
    ) async throws -> Bool {
        try await blocking { [handle] in
            try handle.isKept(id: id, prompt: .messages(messages: messages), options: options).isWarm
        }
    }

    /// Unpins the prompt of a name. Returns whether the name existed.
    @discardableResult
    public func invalidate(_ id: String) async throws -> Bool {
        try await blocking { [handle] in try handle.forgetPrompt(id: id) }
    }

    /// Statistics of the engine after its last step.
    public func stats() throws -> Stats {
        try handle.stats()
    }

    /// The sampling of answers whose options set none: what the model's makers recommend, else kvik's defaults, each setting
    /// with its source. `reasoning` is that of the options: some makers recommend other settings without it.
    public func sampling(reasoning: Bool? = nil) throws -> ModelSampling {
        try handle.sampling(reasoning: reasoning)
    }

    /// Releases memory to the system, in about 50 ms: for `didReceiveMemoryWarning`.
    @discardableResult
    public func onMemoryPressure(_ level: MemoryPressure) throws -> Released {
        try handle.onMemoryPressure(level: level)
    }

    /// Prepares for the end of the process, in about 100 ms: cancels all answers and writes computed blocks to the disk. For
    /// `applicationDidEnterBackground`. After that no thread of the model runs until the next call.
    @discardableResult
    public func onBackground() throws -> Flushed {
        try handle.onBackground()
    }

    /// Cancels all answers, waits up to two seconds until computed blocks are on disk, and stops all threads.
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
                // The end of the reader is noticed at once, also while no piece arrives.
                continuation.onTermination = { _ in answer.cancel() }
                reading.async { read(answer, continuation, onReport) }
            } catch {
                continuation.finish(throwing: error)
            }
        }
    }
}

/// A whole answer: its text, the reasoning before it, its tool calls, and its report.
public struct Reply: Sendable {
    public let text: String
    public let reasoning: String
    public let calls: [ToolCall]
    public let report: Report
}

extension Message {
    /// Creates a system message.
    public static func system(_ content: String) -> Message { Message(role: .system, content: content) }

    /// Creates a user's message.
    public static func user(_ content: String) -> Message { Message(role: .user, content: content) }

    /// Creates a message of the model.
    public static func assistant(_ content: String) -> Message { Message(role: .assistant, content: content) }
}

extension Piece {
    /// Text of a piece; empty for a call.
    public var text: String {
        switch self {
        case let .reasoning(text), let .text(text): return text
        case .call: return ""
        }
    }
}

extension KeptState {
    /// True if the prompt is pinned and cached, but for its last token.
    public var isWarm: Bool {
        if case let .kept(_, _, _, warm) = self { return warm }
        return false
    }
}

/// Converts the bytes of a vector to numbers.
private func floats(_ bytes: Data) -> [Float] {
    stride(from: 0, to: bytes.count, by: 4).map { at in
        let bits = (0..<4).reduce(UInt32(0)) { $0 | UInt32(bytes[bytes.startIndex + at + $1]) << (8 * $1) }
        return Float(bitPattern: bits)
    }
}

/// Threads that may block: Swift's own for tasks are as few as there are cores.
private let reading = DispatchQueue(label: "dev.kvik.reading", attributes: .concurrent)

/// A report that one task writes before another one reads it.
private final class Taken: @unchecked Sendable {
    var report: Report?
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
