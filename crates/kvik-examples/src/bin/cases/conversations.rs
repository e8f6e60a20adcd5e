//! Conversations: what is said in them, kept of them and done to them.

use kvik_library::{Conversation, Model};

use crate::answers::{answer, messages};
use crate::list::{Line, quote};
use crate::{Failure, Result, done};

/// What is done to one of them.
pub(crate) fn run(mut conversation: Conversation, line: &Line) -> Result {
    match line.operation.as_str() {
        "say" => answer(line, |options| conversation.say(&messages(line), options).map_err(Failure::from)),
        "messages" => {
            let said = conversation.messages()?;
            let said =
                said.iter().map(|message| format!("{}={}", message.role.name(), quote(&message.content)));
            Ok(said.collect::<Vec<_>>().join(" "))
        }
        "remembered" => {
            let summary = conversation.remembered()?.map(|remembered| remembered.summary);
            Ok(format!("summary={}", quote(&summary.unwrap_or_default())))
        }
        "correct" => Ok(done(conversation.correct(line.get("summary"))?)),
        "take_back" => {
            let from = line.number("from").expect("it says from where");
            Ok(done(conversation.take_back(from)?))
        }
        "rename" => Ok(done(conversation.rename(line.get("name"))?)),
        _ => Ok(done(conversation.delete()?)),
    }
}

pub(crate) fn all(model: &Model) -> String {
    let named = model
        .conversations()
        .into_iter()
        .map(|one| format!("name={} messages={}", quote(&one.name.unwrap_or_default()), one.messages));
    named.collect::<Vec<_>>().join(" ")
}
