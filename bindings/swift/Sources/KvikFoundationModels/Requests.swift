#if canImport(FoundationModels, _version: 2)

import Foundation
import FoundationModels
import Kvik

/// The messages of a request; with the schema in words, where the framework asks for that.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
func chatMessages(of request: LanguageModelExecutorGenerationRequest) throws -> [Message] {
    let messages = try chatMessages(of: request.transcript)
    guard request.contextOptions.includeSchemaInPrompt == true, let schema = request.schema, let last = messages.last else {
        return messages
    }
    // Behind all that a later turn says again, so that the prefix stays the same.
    let content = last.content + "\n\nAnswer with JSON that satisfies this schema: \(try json(schema))"
    let asked = Message(role: last.role, content: content, toolCalls: last.toolCalls, toolCallId: last.toolCallId)
    return messages.dropLast() + [asked]
}

/// The messages of a transcript. A model's earlier reasoning is not among them: templates leave it out.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
func chatMessages(of transcript: Transcript) throws -> [Message] {
    try transcript.compactMap { entry -> Message? in
        switch entry {
        case .instructions(let instructions):
            return try text(instructions.segments, of: entry).map(Message.system)
        case .prompt(let prompt):
            return .user(try text(prompt.segments, of: entry) ?? "")
        case .response(let response):
            return .assistant(try text(response.segments, of: entry) ?? "")
        case .toolCalls(let calls):
            return Message(role: .assistant, content: "", toolCalls: calls.map(toolCall))
        case .toolOutput(let output):
            let content = try text(output.segments, of: entry) ?? ""
            return Message(role: .tool, content: content, toolCallId: output.id)
        case .reasoning:
            return nil
        @unknown default:
            throw unsupported(entry, "kvik does not know this kind of entry")
        }
    }
}

/// The tools that a session may call, as OpenAI writes them; none where there are none.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
func toolsJson(_ definitions: [Transcript.ToolDefinition]) throws -> String? {
    guard !definitions.isEmpty else { return nil }
    let tools = try definitions.map { definition -> [String: Any] in
        let parameters = try JSONSerialization.jsonObject(with: JSONEncoder().encode(definition.parameters))
        return [
            "type": "function",
            "function": ["name": definition.name, "description": definition.description, "parameters": parameters],
        ]
    }
    // The same tools are the same bytes, and so the same prefix.
    return String(decoding: try JSONSerialization.data(withJSONObject: tools, options: .sortedKeys), as: UTF8.self)
}

/// The tools that a transcript's instructions name.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
func toolDefinitions(of transcript: Transcript) -> [Transcript.ToolDefinition] {
    transcript.flatMap { entry -> [Transcript.ToolDefinition] in
        if case .instructions(let instructions) = entry { return instructions.toolDefinitions }
        return []
    }
}

/// What the answer to a request is asked for with.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
func answerOptions(for request: LanguageModelExecutorGenerationRequest) throws -> AnswerOptions {
    let asked = request.generationOptions
    let sampling = Sampling(asked)
    let tools = try toolsJson(request.enabledToolDefinitions)
    return AnswerOptions(
        maxTokens: asked.maximumResponseTokens.map(Int64.init),
        temperature: sampling.temperature,
        topP: sampling.topP,
        topK: sampling.topK,
        minP: sampling.minP,
        seed: sampling.seed,
        reasoning: request.contextOptions.reasoningLevel.map { _ in true },
        tools: tools,
        toolChoice: tools.flatMap { _ in toolChoice(asked.toolCallingMode) },
        constraint: try request.schema.map { .jsonSchema(schema: try json($0)) }
    )
}

/// The sampling that is asked for. What is not asked for is left to the model, whose makers recommend something.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private struct Sampling {
    var temperature: Double?
    var topP: Double?
    var topK: Int64?
    var minP: Double?
    var seed: Int64?

    init(_ asked: GenerationOptions) {
        temperature = asked.temperature
        switch asked.samplingMode?.kind {
        case .greedy:
            temperature = 0
        case .randomTopK(let count, let seed):
            chooseAmong(topK: Int64(count), topP: 1)
            self.seed = seed.map { Int64(bitPattern: $0) }
        case .randomProbabilityThreshold(let threshold, let seed):
            chooseAmong(topK: 0, topP: threshold)
            self.seed = seed.map { Int64(bitPattern: $0) }
        default:
            break
        }
    }

    /// A mode says which tokens there are to choose from, so that no recommendation narrows them further.
    private mutating func chooseAmong(topK: Int64, topP: Double) {
        self.topK = topK
        self.topP = topP
        minP = 0
    }
}

@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private func toolChoice(_ mode: GenerationOptions.ToolCallingMode?) -> String? {
    switch mode?.kind {
    case .required: return "required"
    case .disallowed: return "none"
    default: return nil
    }
}

/// A schema as JSON, which is how the framework encodes it.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private func json(_ schema: GenerationSchema) throws -> String {
    String(decoding: try JSONEncoder().encode(schema), as: UTF8.self)
}

@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private func toolCall(_ call: Transcript.ToolCall) -> ToolCall {
    ToolCall(id: call.id, name: call.toolName, arguments: call.arguments.jsonString)
}

/// The text of segments; none where they have none. Pictures are refused: leaving them out would change the question.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private func text(_ segments: [Transcript.Segment], of entry: Transcript.Entry) throws -> String? {
    let texts = try segments.map { segment -> String in
        switch segment {
        case .text(let text): return text.content
        case .structure(let structure): return structure.content.jsonString
        default: throw unsupported(entry, "kvik reads text and structures")
        }
    }
    return texts.isEmpty ? nil : texts.joined(separator: "\n")
}

@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
private func unsupported(_ entry: Transcript.Entry, _ why: String) -> LanguageModelError {
    .unsupportedTranscriptContent(.init(unsupportedContent: [entry], debugDescription: why))
}

#endif
