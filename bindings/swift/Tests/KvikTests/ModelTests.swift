import XCTest

@testable import Kvik

/// The face over the embedded model, whose file `KVIK_MODEL` names.
final class ModelTests: XCTestCase {
    private let messages: [Message] = [.system("Be brief."), .user("Who are you?")]

    private func model() async throws -> Model {
        let path = try XCTUnwrap(ProcessInfo.processInfo.environment["KVIK_MODEL"])
        return try await Model.open(path, options: ModelOptions(kvBytes: 64 << 20, threads: 2))
    }

    func testPiecesAreTheAnswer() async throws {
        let model = try await model()
        var text = ""
        for try await piece in model.chat(messages, options: AnswerOptions(maxTokens: 16)) {
            text += piece.text
        }
        let again = try await model.answer(messages, options: AnswerOptions(maxTokens: 16))
        XCTAssertEqual(again.text, text)
        XCTAssertEqual(again.report.computedTokens, 1)
        try model.close()
        XCTAssertThrowsError(try model.stats()) { XCTAssertTrue($0 is KvikError) }
    }

    func testAReaderThatHasEnoughCancelsItsAnswer() async throws {
        let model = try await model()
        let endless = AnswerOptions(maxTokens: 1500, minTokens: 1500, temperature: 0.9)
        for try await _ in model.chat(messages, options: endless) { break }
        while try model.stats().running > 0 { try await Task.sleep(nanoseconds: 1_000_000) }
        XCTAssertLessThan(try model.stats().generatedTokens, 1500)
    }
}
