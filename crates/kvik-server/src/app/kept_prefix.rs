//! `kvik.kept_prefix`: a request reads the compressed prefix of a prompt that its tenant has pinned by name,
//! or of any prompt.

use kvik_cache::{Token, whole_blocks};
use kvik_engine::api::Request;
use kvik_engine::schedule::prefix::common_prefix;

use super::{
    prompts::{PromptKey, PromptRecord},
    state::App,
};
use crate::{accounts::tenants::Tenant, http::error::ApiError};
use kvik_serving::retaining::{Reach, RetainRefusal};

/// The compressed prefix that a request may read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum KeptPrefix {
    /// That of the pinned prompt of this name.
    Named(String),
    /// That of any prefix of its tokens, where the exact cache holds fewer of them.
    Any,
}

/// The field's path in a body.
const PATH: &str = "kvik.kept_prefix";

/// Lets requests of a tenant read a compressed prefix.
///
/// # Errors
/// If they do not begin with the prompt that they name.
pub(crate) fn read(
    app: &App,
    tenant: &Tenant,
    prefix: &KeptPrefix,
    requests: &mut [Request],
) -> Result<(), ApiError> {
    match prefix {
        KeptPrefix::Named(name) => read_named(app, tenant, name, requests)?,
        KeptPrefix::Any => {
            for request in requests {
                request.retention = None;
                request.kept_prefix = Some(request.prompt.len());
            }
        }
    }
    Ok(())
}

/// Lets requests read the compressed prefix of the prompt `name`, with which each must begin.
///
/// # Errors
/// If the tenant has no such prompt, the prompt is stored in full, or the requests do not begin with it.
fn read_named(app: &App, tenant: &Tenant, name: &str, requests: &mut [Request]) -> Result<(), ApiError> {
    let key = PromptKey { tenant: tenant.name.clone(), name: name.to_owned() };
    let record = app.registry.get(&key).ok_or_else(|| unknown(name))?;
    let retention = record.retention().ok_or_else(|| kept_whole(name))?;
    app.serving.retaining.check(retention, Reach::Prefix).map_err(refused)?;
    for request in requests {
        check_beginning(name, &record, &request.prompt)?;
        request.retention = Some(retention);
        request.kept_prefix = Some(whole_blocks(&record.tokens).len());
    }
    Ok(())
}

fn check_beginning(name: &str, record: &PromptRecord, prompt: &[Token]) -> Result<(), ApiError> {
    let (shared, all) = (common_prefix(&record.tokens, prompt), record.tokens.len());
    if shared == all {
        return Ok(());
    }
    let how = if shared == prompt.len() { "ends" } else { "differs" };
    let message = format!(
        "`{PATH}`: the prompt does not begin with what is kept under `{name}`: of its {all} tokens the first {shared} agree, then the prompt {how}; send the same messages and tools first (`kvik prompt check {name} FILE` compares them)"
    );
    Err(ApiError::field(PATH, message))
}

fn unknown(name: &str) -> ApiError {
    let message = format!(
        "`{PATH}`: no prompt is kept under the name `{name}`; `kvik prompt add {name} FILE --retain kvzip:0.25` keeps one, `kvik prompt ls` lists them"
    );
    ApiError::field(PATH, message)
}

fn kept_whole(name: &str) -> ApiError {
    let message = format!(
        "`{PATH}`: all of `{name}` is kept, which a request that begins so finds without asking; leave the field out, or keep a part (`kvik prompt add {name} FILE --retain kvzip:0.25`)"
    );
    ApiError::field(PATH, message)
}

/// The error when the bound on losses was lowered, or the prompt was measured, since it was stored.
fn refused(refusal: RetainRefusal) -> ApiError {
    ApiError::field(PATH, format!("`{PATH}`: {refusal}"))
}
