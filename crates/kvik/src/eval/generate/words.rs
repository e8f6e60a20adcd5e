//! Words and sentences of generated cases, plain enough for the smallest model. No sentence has a digit, so numbers
//! occur only where a task inserts them.

use crate::eval::draws::Draws;

pub(super) const NAMES: [&str; 32] = [
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ida", "Jack", "Karen", "Leo",
    "Maria", "Nora", "Oscar", "Paul", "Rosa", "Sam", "Tina", "Victor", "Walter", "Zoe", "Alice", "Bruno",
    "Carla", "Felix", "Hugo", "Julia", "Lisa", "Martin", "Peter", "Sarah",
];

pub(super) const ANIMALS: [&str; 16] = [
    "badger", "bear", "crow", "deer", "duck", "fox", "frog", "goat", "heron", "horse", "lion", "mouse",
    "otter", "owl", "rabbit", "wolf",
];

pub(super) const PLACES: [&str; 16] = [
    "bakery", "beach", "castle", "cinema", "forest", "garden", "harbour", "island", "library", "market",
    "meadow", "museum", "park", "river", "station", "village",
];

pub(super) const OBJECTS: [&str; 20] = [
    "bell", "blanket", "boat", "book", "box", "clock", "coin", "drum", "hat", "key", "kite", "lamp",
    "letter", "map", "mirror", "ring", "stone", "table", "umbrella", "window",
];

/// Words that occur in no sentence.
pub(super) const SECRETS: [&str; 16] = [
    "anchor", "candle", "copper", "falcon", "ginger", "hammer", "ladder", "marble", "pepper", "rocket",
    "saddle", "ticket", "tulip", "tunnel", "velvet", "walnut",
];

const COLOURS: [&str; 12] = [
    "amber", "black", "blue", "brown", "green", "grey", "orange", "purple", "red", "silver", "white",
    "yellow",
];

const FOODS: [&str; 12] = [
    "apples", "bread", "cheese", "cherries", "honey", "noodles", "pancakes", "pears", "plums", "rice",
    "soup", "waffles",
];

const WEATHER: [&str; 8] = ["cloudy", "cold", "foggy", "rainy", "snowy", "sunny", "warm", "windy"];

const MEALS: [&str; 3] = ["breakfast", "lunch", "dinner"];

/// A sentence without relevant information.
pub(super) fn filler(draws: &mut Draws) -> String {
    let (name, animal, place) = (draws.pick(&NAMES), draws.pick(&ANIMALS), draws.pick(&PLACES));
    let (object, colour, food) = (draws.pick(&OBJECTS), draws.pick(&COLOURS), draws.pick(&FOODS));
    let weather = draws.pick(&WEATHER);
    match draws.below(14) {
        0 => format!("It was {weather} near the {place}."),
        1 => format!("{name} walked to the {place} with a basket of {food}."),
        2 => format!("The {animal} slept under a {colour} {object}."),
        3 => format!("{name} looked for the lost {object} all day."),
        4 => format!("There was music at the {place}."),
        5 => format!("They sat down and ate {food}."),
        6 => format!("A {colour} light was shining between the trees."),
        7 => format!("The {animal} found a {colour} {object} by the road."),
        8 => format!("{name} told a story about a {animal} and a {object}."),
        9 => format!("The path went up the hill to the {place}."),
        10 => format!("A {weather} day can be nice."),
        11 => format!("The old {animal} smiled and pointed to the {place}."),
        12 => "The river runs to the sea.".to_owned(),
        _ => "Clouds move slowly over the hills.".to_owned(),
    }
}

/// A turn of small talk: the user's message and the assistant's.
pub(super) fn small_talk(draws: &mut Draws) -> (String, &'static str) {
    let (place, food) = (draws.pick(&PLACES), draws.pick(&FOODS));
    let (weather, meal) = (draws.pick(&WEATHER), draws.pick(&MEALS));
    match draws.below(8) {
        0 => (format!("It is {weather} today."), "Thank you for telling me."),
        1 => (format!("I had {food} for {meal}."), "That sounds tasty."),
        2 => (format!("I went to the {place} this morning."), "I hope it was pleasant."),
        3 => (format!("The {place} was very busy today."), "That can be tiring."),
        4 => ("The bus was late again.".to_owned(), "That is annoying."),
        5 => (format!("We might eat {food} tonight."), "Enjoy your meal."),
        6 => (format!("There was music at the {place}."), "Music makes a place cheerful."),
        _ => (format!("{} {}", filler(draws), filler(draws)), "That is quite a story."),
    }
}

/// The words for small numbers.
pub(super) const NUMBERS: [&str; 13] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
];
