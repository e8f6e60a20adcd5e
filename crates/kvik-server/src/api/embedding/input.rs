//! Conversion of texts and token ids to engine requests.

use kvik_cache::{Lifetime, Token};
use kvik_engine::api::{AdapterMix, PinnedPrompt, Request, Wants};

use crate::{
    api::request::{
        cache::{CacheFields, Keep},
        prompt::Prompt,
    },
    app::{lora, state::App},
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of texts in one request, as in OpenAI's API.
pub(in crate::api) const INPUTS_MAX: usize = 2048;

/// Cache settings and adapters of prompts for which vectors are requested.
#[derive(Debug, Clone)]
pub(in crate::api) struct Treatment {
    reuse: bool,
    lifetime: Lifetime,
    adapters: Option<AdapterMix>,
}

impl Treatment {
    /// Reads the settings from a body; refuses those that apply to text generation only.
    pub(in crate::api) fn of(app: &App, body: &Body, fields: CacheFields) -> Result<Treatment> {
        let Keep { reuse, lifetime, retain, kept_prefix, memory, conversation, .. } = fields.keep()?;
        let for_text = [
            ("retain", retain.is_some()),
            ("kept_prefix", kept_prefix.is_some()),
            ("memory", memory == Some(true)),
            ("conversation", conversation.is_some()),
        ];
        match for_text.iter().find(|(_, asked)| *asked) {
            Some((name, _)) => {
                let message =
                    format!("`kvik.{name}` is for answers in text; an embedding reads all of its text");
                Err(ApiError::field(format!("kvik.{name}"), message))
            }
            None => {
                let adapters = lora::adapters(body, &app.serving.lora)?;
                Ok(Treatment { reuse, lifetime, adapters })
            }
        }
    }

    /// Returns the engine's request for a vector.
    pub(in crate::api) fn request(&self, tokens: Vec<Token>, wants: Wants) -> Request {
        // Tenant and salt are set on submission.
        let kept = PinnedPrompt {
            tokens,
            salt: [0; 16],
            tenant: Default::default(),
            retention: None,
            adapters: self.adapters.clone(),
        };
        Request { wants, reuse: self.reuse, lifetime: self.lifetime, ..kept.request() }
    }
}

/// Tokenizes each of `inputs`, which come from the field `name`; an error names the faulty entry.
pub(in crate::api) fn encode(
    app: &App,
    body: &Body,
    name: &str,
    inputs: &[Prompt],
) -> Result<Vec<Vec<Token>>> {
    let encode = |(index, input): (usize, &Prompt)| {
        body.still_wanted()?;
        // A single text is not an array.
        let place = if inputs.len() == 1 { name.to_owned() } else { format!("{name}[{index}]") };
        encode_one(app, input).map_err(|error| named(error, &place))
    };
    inputs.iter().enumerate().map(encode).collect()
}

fn encode_one(app: &App, input: &Prompt) -> Result<Vec<Token>> {
    if input.is_empty() {
        return Err(ApiError::bad_request("there is nothing to embed"));
    }
    let vocab = app.serving.texts.tokenizer.vocab_len();
    if let Some(unknown) = input.ids().find(|&id| id as usize >= vocab) {
        return Err(ApiError::bad_request(format!("a token id must be below {vocab}, not {unknown}")));
    }
    input.encode(app)
}

/// Adds the place of the error to its message.
pub(super) fn named(error: ApiError, place: &str) -> ApiError {
    let message = format!("`{place}`: {error}");
    error.because(message).at(place)
}
