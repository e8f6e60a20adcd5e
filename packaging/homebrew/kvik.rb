# Formula of Homebrew. The release workflow writes the repository, `url` and `sha256`; HEAD builds from the sources.
class Kvik < Formula
  desc "Local LLM server whose centre is the KV cache"
  homepage "https://github.com/@REPOSITORY@"
  license any_of: ["MIT", "Apache-2.0"]
  head "https://github.com/@REPOSITORY@.git", branch: "main"

  depends_on "rust" => :build

  def install
    system "cargo", "install", "--features", "tls-ring", *std_cargo_args(path: "crates/kvik")
    generate_completions_from_executable(bin/"kvik", "completions")
    system bin/"kvik", "man", buildpath/"man"
    man1.install Dir["man/*.1"]
  end

  service do
    run [opt_bin/"kvik", "serve"]
    keep_alive true
    log_path var/"log/kvik.log"
    error_log_path var/"log/kvik.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/kvik --version")
    refute_empty shell_output("#{bin}/kvik run --max-tokens 4 Hello").strip
  end
end
