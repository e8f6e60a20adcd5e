//! Task of sorting notifications by a long system prompt: folders with descriptions, and priorities.

use super::Filler;
use super::words::SECRETS;
use crate::eval::draws::Draws;
use crate::eval::score::Expected;
use crate::eval::written::{Question, WrittenCase, message};

/// The description of a folder, and a notification that belongs there: app, title, text.
const KINDS: [(&str, [&str; 3]); 8] = [
    (
        "parcels, couriers and shipping updates",
        ["ParcelGo", "Delivered", "Your package was left at the door."],
    ),
    ("doctor, pharmacy and test results", ["ClinicOne", "Vaccine", "Your vaccination is on Tuesday."]),
    ("sales, coupons and marketing", ["ShopNow", "Sale", "All shoes are half price until Sunday."]),
    (
        "chats with friends and plans for going out",
        ["Chatter", "New message", "Shall we meet at the cinema tonight?"],
    ),
    ("electricity, water, rent and phone bills", ["CityPower", "Invoice", "Your electricity bill is ready."]),
    ("league news and matches", ["GoalLine", "Final score", "The match ended two to one."]),
    ("lessons, exams and homework", ["SchoolBook", "Exam", "The maths exam was moved to Monday."]),
    ("boarding passes, hotels and holidays", ["FlyHigh", "Boarding", "Your boarding pass is ready."]),
];

/// Folders of a prompt.
const FOLDERS: usize = 6;

/// The wording of an urgency in a notification, and its description in the system prompt.
const PRIORITIES: [(&str, &str); 4] = [
    ("Urgent: act at once!", "urgent, act now"),
    ("Please answer today.", "needs an answer today"),
    ("Please see to it this week.", "normal, this week"),
    ("No action is needed.", "no action needed"),
];

/// A notification to sort; folder names are arbitrary, so the answer depends on the prompt.
pub(super) fn triage(draws: &mut Draws, _: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let (kinds, names) = (draws.sample(&KINDS, FOLDERS), draws.sample(&SECRETS, FOLDERS));
    let folders: Vec<String> = names.into_iter().map(|word| word[..1].to_uppercase() + &word[1..]).collect();
    let (asked, urgency) = (draws.below(FOLDERS), draws.below(PRIORITIES.len()));
    let [app, title, text] = kinds[asked].1;
    let notification = format!("App: {app}\nTitle: {title}\nBody: {text} {}", PRIORITIES[urgency].0);
    let listed = kinds.iter().zip(&folders).map(|((about, _), folder)| format!("- {about}: {folder}\n"));
    WrittenCase {
        messages: vec![
            message("system", &system(&listed.collect::<String>())),
            message("user", &notification),
        ],
        question: Question::LastMessage,
        thinking: Some(false),
        lead: "{\"folder\": \"".to_owned(),
        expected: Expected::Words(vec![folders[asked].clone()]),
        limit: 40,
        group: String::new(),
    }
}

/// The system prompt with its lines of folders.
fn system(folders: &str) -> String {
    let levels = PRIORITIES.iter().zip(1..).map(|((_, about), level)| format!("{about} = {level}\n"));
    format!(
        "Sort each notification of the user. Choose one folder and one priority.\n\nFolders:\n{folders}\n\
         Priority:\n{}\nOutput one line of JSON with the keys \"folder\" and \"priority\".",
        levels.collect::<String>()
    )
}
