//! kvik's own endpoints: cache, pinned prompts, conversations, usage, statistics.

pub(crate) mod cache;
mod conversation_answers;
mod conversation_items;
mod conversation_memory;
pub(crate) mod conversations;
pub(super) mod explain;
mod markdown;
mod named;
mod prompt_answers;
pub(crate) mod prompts;
mod retention;
mod running_answer;
mod shelf;
mod short_names;
mod stats;
mod tree;
pub(crate) mod usage;

use std::sync::Arc;

use serde_json::{Map, Value};

use self::{
    conversation_answers::{
        DeletedConversation, Export, ListedConversations, ReadConversation, ShownConversation,
    },
    named::Named,
    prompts::Fields as KeptFields,
};
use super::{
    openai::streams_chat,
    responses::items::{ITEM_PARAMETERS, InputItems},
    route::{Answer, Dialect, Errors, Route, answers, at, gives},
};
use crate::{app::shelf::Shelf, described::SchemaOf, http::error::ErrorBody};

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let mut routes = cache_routes();
    routes.extend(prompt_routes());
    routes.push(memory_route());
    let stats =
        gives::<stats::Stats>("Counts what was asked and reused since the start, and what the cache holds");
    let retention = gives::<retention::RetentionList>(
        "Lists what retention policies were measured to lose on this model",
    );
    routes.push(at(&["/v1/retention"]).get(retention::route, retention));
    routes.push(at(&["/v1/stats"]).get(stats::route, stats));
    Dialect { name: "kvik", errors: Errors::of::<ErrorBody>(), routes, of_server: of_server() }
}

fn cache_routes() -> Vec<Route> {
    let cache =
        gives::<cache::CacheList>("Lists the top prefixes of the cache").asks(&cache::LIST_PARAMETERS);
    let clear = gives::<cache::Cleared>("Drops all that is neither in use nor pinned");
    let explain =
        gives::<explain::Explained>("Says what a request would find in the cache, without running it");
    let evict = gives::<cache::Evicted>("Drops a prompt and all that begins with it").takes::<Named>();
    let pin = gives::<cache::Pinned>("Computes a prompt and pins it").takes::<Named>();
    let tree =
        gives::<tree::Tree>("Shows the heaviest nodes of the prefix tree, the others folded into them");
    let unpin_all = gives::<cache::Unpinned>("Takes back all pins").asks(&cache::UNPIN_PARAMETERS);
    vec![
        at(&["/v1/cache"]).get(cache::list, cache).delete(cache::clear, clear),
        at(&["/v1/cache/explain"]).post(explain::route, explain.takes::<explain::Fields>()),
        at(&["/v1/cache/evict"]).post(cache::evict, evict),
        at(&["/v1/cache/pin"]).post(cache::pin, pin),
        at(&["/v1/cache/pins"])
            .get(cache::pins, gives::<cache::Pins>("Lists what is pinned"))
            .delete(cache::unpin_all, unpin_all),
        at(&["/v1/cache/pins/{id}"]).delete(cache::unpin, gives::<cache::Unpinned>("Takes back one pin")),
        at(&["/v1/cache/tree"]).get(tree::tree, tree.asks(&tree::PARAMETERS)),
        at(&["/v1/cache/tree/{id}"])
            .get(tree::node, gives::<tree::ShownNode>("Shows one node of the prefix tree")),
    ]
}

fn of_server() -> Vec<Route<Arc<Shelf>>> {
    let usage = gives::<usage::UsageList>("Shows what a tenant has used, by day and model");
    let mut routes = conversation_routes();
    routes.extend(shelf_routes());
    routes.push(at(&["/v1/usage"]).get(usage::route, usage.asks(&usage::PARAMETERS)));
    routes
}

fn shelf_routes() -> Vec<Route<Arc<Shelf>>> {
    let list = gives::<shelf::ShownShelf>("Lists the models, and how each stands");
    let load = gives::<shelf::ShownShelf>("Loads a model").takes::<shelf::ModelFields>();
    let unload = gives::<shelf::ShownShelf>("Takes a model out of memory when what runs has ended")
        .takes::<shelf::ModelFields>();
    let reload = gives::<shelf::ShownShelf>("Reads config.toml and the models on disk again");
    vec![
        at(&["/v1/shelf"]).get(shelf::list, list),
        at(&["/v1/shelf/load", "/models/load"]).post(shelf::load, load),
        at(&["/v1/shelf/unload", "/models/unload"]).post(shelf::unload, unload),
        at(&["/v1/shelf/reload"]).post(shelf::reload, reload),
        at(&["/v1/shelf/short-names"]).get(
            short_names::list,
            gives::<short_names::ShortNames>("Lists models of the hub that have short names"),
        ),
    ]
}

/// Returns the route of a stored conversation's summary, which belongs to a model.
fn memory_route() -> Route {
    type Shown = conversation_memory::ConversationMemory;
    let show = gives::<Shown>("Shows what is remembered of a conversation");
    let correct = gives::<Shown>("Corrects what is remembered of a conversation")
        .takes::<conversation_memory::CorrectFields>();
    at(&["/v1/conversations/{id}/memory"])
        .get(conversation_memory::show, show)
        .post(conversation_memory::correct, correct)
}

fn conversation_routes() -> Vec<Route<Arc<Shelf>>> {
    let begin = gives::<ShownConversation>("Begins a conversation that the server keeps");
    let list = gives::<ListedConversations>("Lists the conversations that the server keeps");
    let change = gives::<ShownConversation>("Changes the name of a conversation, or what is kept beside it");
    let take_back = gives::<ShownConversation>("Takes back the last messages of a conversation");
    let export = "Gives a conversation as `POST /v1/conversations` takes it, or as a text in Markdown";
    let export = answers(Answer::JsonOrText(SchemaOf::of::<Export>(), "text/markdown"), export);
    let mut routes = vec![
        at(&["/v1/conversations"])
            .get(conversations::list, list.asks(&conversations::PAGE_PARAMETERS))
            .post(conversations::begin, begin.takes::<conversations::BeginFields>()),
        at(&["/v1/conversations/{id}"])
            .get(
                conversations::get,
                gives::<ReadConversation>("Shows a conversation and what was said in it"),
            )
            .post(conversations::change, change.takes::<conversations::ChangeFields>())
            .delete(conversations::delete, gives::<DeletedConversation>("Deletes a conversation")),
        at(&["/v1/conversations/{id}/messages"])
            .delete(conversations::take_back, take_back.asks(&conversations::TAKEN_BACK_PARAMETERS)),
    ];
    routes.extend(item_routes());
    routes.push(
        at(&["/v1/conversations/{id}/export"])
            .get(conversations::export, export.asks(&conversations::EXPORT_PARAMETERS)),
    );
    routes.push(running_answer_route());
    routes
}

fn item_routes() -> [Route<Arc<Shelf>>; 2] {
    let list = gives::<InputItems>("Lists what was said in a conversation as items").asks(&ITEM_PARAMETERS);
    let add = gives::<InputItems>("Adds items to a conversation, and lists them")
        .takes::<conversation_items::AddFields>();
    let get = gives::<Map<String, Value>>("Shows an item of a conversation");
    let delete = gives::<ShownConversation>("Takes back the last message of a conversation, by its item");
    [
        at(&["/v1/conversations/{id}/items"])
            .get(conversation_items::list, list)
            .post(conversation_items::add, add),
        at(&["/v1/conversations/{id}/items/{item_id}"])
            .get(conversation_items::get, get)
            .delete(conversation_items::delete, delete),
    ]
}

fn running_answer_route() -> Route<Arc<Shelf>> {
    let follow =
        answers(Answer::Refusal, "Follows the answer that runs in a conversation, or ended a moment ago")
            .asks(&running_answer::PARAMETERS);
    let stop = gives::<running_answer::StoppedAnswer>("Stops the answer that runs in a conversation");
    at(&["/v1/conversations/{id}/answer"])
        .get(running_answer::follow, streams_chat(follow))
        .delete(running_answer::stop, stop)
}

fn prompt_routes() -> Vec<Route> {
    let put = gives::<prompt_answers::PromptKept>("Computes a prompt and keeps it").takes::<KeptFields>();
    let check = gives::<prompt_answers::PromptState>("Compares a prompt with the one that is kept")
        .takes::<KeptFields>();
    vec![
        at(&["/v1/prompts"])
            .get(prompts::list, gives::<prompt_answers::PromptList>("Lists the prompts that are kept")),
        at(&["/v1/prompts/{name}"])
            .get(prompts::get, gives::<prompt_answers::PromptState>("Shows a prompt that is kept"))
            .put(prompts::put, put)
            .delete(prompts::delete, gives::<prompt_answers::PromptDeleted>("Stops keeping a prompt")),
        at(&["/v1/prompts/{name}/check"]).post(prompts::check, check),
    ]
}
