#if canImport(FoundationModels, _version: 2)

import Foundation
import FoundationModels
import Kvik

/// The entries of one answer in the session's transcript: pieces with the same id are one entry.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
struct Entries: Sendable {
    typealias Channel = LanguageModelExecutorGenerationChannel

    private let response = UUID().uuidString
    private let reasoning = UUID().uuidString
    private let calls = UUID().uuidString

    /// A piece counts as a token until `usage` says what it was: pieces that arrive together come as one.
    func event(for piece: Piece) -> Channel.Event {
        switch piece {
        case .reasoning(let text):
            return .reasoning(entryID: reasoning, action: .appendText(text, tokenCount: 1))
        case .text(let text):
            return .response(entryID: response, action: .appendText(text, tokenCount: 1))
        case .call(let call):
            let arguments: Channel.ToolCalls.ToolCall.Action = .appendArguments(call.arguments, tokenCount: 1)
            return .toolCalls(entryID: calls, action: .toolCall(id: call.id, name: call.name, action: arguments))
        }
    }

    /// What the answer took, with what the cache gave.
    func usage(of report: Report) -> Channel.Event {
        .response(
            entryID: response,
            action: .updateUsage(
                input: .init(
                    totalTokenCount: Int(report.promptTokens),
                    cachedTokenCount: Int(report.cachedTokens)
                ),
                // kvik does not count the tokens of reasoning apart.
                output: .init(totalTokenCount: Int(report.generatedTokens), reasoningTokenCount: 0)
            )
        )
    }
}

#endif
