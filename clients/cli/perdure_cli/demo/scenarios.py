"""What customers of the railway want, turn by turn: the generator's dialogues."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from perdure_cli.demo.dialogue import Dialogue
from perdure_cli.demo.railway import (
    POLICY,
    Booking,
    make_booking,
    make_date,
    make_train,
)

_PENALTY_SHARES: Final = {"saver": 1.0, "standard": 0.15, "flexible": 0.0}


def write_dialogue(seed: int, index: int) -> list[dict[str, Any]]:
    """Return one conversation's messages, the same for the same arguments.

    The customer is found, asks for one to three things, and leaves.
    """
    chance = Random(seed * 1_000_003 + index)
    booking = make_booking(chance)
    dialogue = Dialogue(chance, POLICY.format(today=make_date(chance)))
    _find_customer(dialogue, booking)
    wishes = chance.sample(_WISHES, chance.randint(1, 3))
    for wish in sorted(wishes, key=lambda wish: wish is _cancel):
        wish(dialogue, booking)
        dialogue.agent_goes_on(
            "Is there anything else I can do for you?",
            "What else can I help with?",
            "Anything else?",
        )
    _leave(dialogue)
    return dialogue.messages


def _find_customer(talk: Dialogue, booking: Booking) -> None:
    talk.user(
        "Hello, I need help with a ticket.",
        "hi! question about my trip to " + booking.train.destination,
        f"Good morning, {booking.first_name} {booking.last_name} here.",
    )
    talk.agent(
        "Hello! May I have your booking code or your e-mail address?",
        "Welcome to Fernrail. Which booking is it about? The code or your e-mail "
        "address is enough.",
    )
    if talk.chance.random() < 0.25:
        wrong = booking.code[::-1]
        talk.user(f"It should be {wrong}", f"{wrong}, I think")
        talk.call(
            "get_booking",
            {"booking": wrong},
            {"error": {"code": "no_such_booking", "booking": wrong}},
        )
        talk.agent(
            f"I cannot find a booking {wrong}. Could you check the code once more?",
            f"{wrong} is not known to us. Is it perhaps the other way round?",
        )
    if talk.chance.random() < 0.3:
        talk.user(f"My address is {booking.email}", booking.email)
        found = {"customer": booking.last_name, "bookings": [booking.code]}
        talk.call("find_customer", {"email": booking.email}, found)
    else:
        talk.user(f"{booking.code}", f"The code is {booking.code}.")
    talk.call("get_booking", {"booking": booking.code}, booking.shown())
    train = booking.train
    talk.agent(
        f"Thank you, {booking.first_name}. I see a {booking.fare} ticket from "
        f"{train.origin} to {train.destination} on {booking.date}, departing "
        f"{train.departs}. What would you like to do?"
    )


def _change_train(talk: Dialogue, booking: Booking) -> None:
    old = booking.train
    talk.user(
        "Can I take a later train that day?",
        f"I will not make the {old.departs}. What else is there?",
    )
    later = [
        make_train(talk.chance, old.origin, old.destination, hour)
        for hour in sorted(talk.chance.sample(range(18, 23), 3))
    ]
    talk.call(
        "list_trains",
        {"from": old.origin, "to": old.destination, "date": booking.date},
        {"trains": [train.shown() for train in later], "truncated": False},
    )
    lines = "\n".join(
        f"- {t.number}: {t.departs} to {t.arrives}, {t.fare_eur:.2f} EUR" for t in later
    )
    talk.agent(f"There are three later trains:\n{lines}\nWhich one suits you?")
    new = talk.chance.choice(later)
    talk.user(f"The {new.departs} one please", f"{new.number} would be perfect 👍")
    fee = 12.0 if booking.fare == "saver" else 0.0
    cost = 0.0
    if booking.fare != "flexible":
        cost = round(fee + max(0.0, new.fare_eur - old.fare_eur), 2)
    talk.agent(
        f"I would move you to {new.number} on {booking.date} at {new.departs}; that "
        f"costs {cost:.2f} EUR. Shall I do it?"
    )
    if talk.chance.random() < 0.2:
        talk.user("Hm, no, then I keep the old one.", "Too late for me, leave it.")
        talk.agent("Of course. Your booking stays as it is.")
        return
    talk.user("Yes please", "yes", "Yes, go ahead.")
    talk.call(
        "change_booking",
        {"booking": booking.code, "train": new.number, "cost_eur": cost},
        {"booking": booking.code, "train": new.shown(), "charged_eur": cost},
    )
    talk.agent(f"You now travel on {new.number}, {new.departs} from {new.origin}.")


def _cancel(talk: Dialogue, booking: Booking) -> None:
    talk.user(
        "What would I get back if I cancelled?",
        "I have to cancel, sadly. Do I get my money back?",
    )
    paid = booking.train.fare_eur
    refund = round(paid * (1 - _PENALTY_SHARES[booking.fare]), 2)
    talk.call(
        "quote_refund",
        {"booking": booking.code},
        {"paid_eur": paid, "refund_eur": refund, "rule": booking.fare},
    )
    talk.agent(
        f"You paid {paid:.2f} EUR; with a {booking.fare} ticket {refund:.2f} EUR would "
        "go back to your card. Shall I cancel?"
    )
    if refund == 0 or talk.chance.random() < 0.4:
        talk.user("Then I would rather keep it.", "No, let me think about it first.")
        talk.agent("Understood, nothing has changed.")
        return
    talk.user("Yes, cancel it.", "ok yes, please cancel")
    talk.call(
        "cancel_booking",
        {"booking": booking.code, "confirm": True},
        {"booking": booking.code, "status": "cancelled", "refund_eur": refund},
    )
    talk.agent(f"Cancelled. {refund:.2f} EUR will arrive within five working days.")


def _claim_delay(talk: Dialogue, booking: Booking) -> None:
    number, date = f"FR {talk.chance.randint(100, 989)}", make_date(talk.chance)
    talk.user(
        f"Last month my train was terribly late. {number} on {date}.",
        f"I want compensation for {number}, {date}. We stood in a field for ages!",
    )
    late, fare = talk.chance.randint(12, 190), round(talk.chance.uniform(15, 90), 2)
    talk.call(
        "get_train_history",
        {"train": number, "date": date},
        {"train": number, "date": date, "delay_minutes": late, "cause": "signal fault"},
    )
    share = 0.5 if late >= 120 else 0.25 if late >= 60 else 0.0
    if share == 0:
        talk.agent(
            f"I am sorry for the wait. {number} arrived {late} minutes late; "
            "compensation starts at 60 minutes, so I cannot open a claim."
        )
        talk.user("That is disappointing, but all right.", "Felt longer. Fine.")
        return
    amount = round(fare * share, 2)
    talk.agent(
        f"{number} was {late} minutes late, so {share:.0%} of {fare:.2f} EUR are due: "
        f"{amount:.2f} EUR. Shall I open the claim?"
    )
    talk.user("Yes, please do.", "yes!", "Please. To the same card.")
    claim = f"CL-{talk.chance.randint(100000, 999999)}"
    talk.call(
        "open_claim",
        {"booking": booking.code, "train": number, "date": date, "share": share},
        {"claim": claim, "amount_eur": amount, "status": "accepted"},
    )
    talk.agent(f"Claim {claim} is open. {amount:.2f} EUR will be paid out.")


def _add_bicycle(talk: Dialogue, booking: Booking) -> None:
    talk.user(
        "Can I bring my bike? 🚲", "I would like to take a bicycle along.", "bike?"
    )
    free = talk.chance.randint(0, 6)
    train = booking.train
    talk.call_together(
        [
            (
                "get_bicycle_spaces",
                {"train": train.number, "date": booking.date},
                {"train": train.number, "spaces_free": free},
            ),
            (
                "get_formation",
                {"train": train.number, "date": booking.date},
                {"coaches": 14, "bicycle_coach": 11, "quiet_coach": 4},
            ),
        ]
    )
    if free == 0:
        talk.agent("All bicycle spaces on that train are taken, I am afraid.")
        talk.user("Pity. Then without it.", "Oh well. I will rent one there.")
        return
    talk.agent(f"{free} spaces are free, in coach 11, for 9.50 EUR. Reserve one?")
    talk.user("Yes", "Yes, one please", "sure, yes")
    talk.call(
        "reserve_bicycle",
        {"booking": booking.code, "spaces": 1, "cost_eur": 9.5},
        {"booking": booking.code, "space": f"11/{talk.chance.randint(1, 6)}"},
    )
    talk.agent("Your bicycle has its place. Please board at coach 11.")


def _report_lost(talk: Dialogue, booking: Booking) -> None:
    thing = talk.chance.choice(
        ("a green umbrella", "my daughter's stuffed owl", "a grey laptop sleeve")
    )
    talk.user(
        f"I left {thing} on the train.", f"Did anyone find {thing}? It was yesterday."
    )
    talk.agent("I am sorry to hear that. Which train was it, and which coach?")
    coach = talk.chance.randint(1, 14)
    talk.user(f"{booking.train.number}, coach {coach}", f"Coach {coach}, same route")
    talk.call(
        "search_lost_property",
        {"description": thing, "coach": coach, "route": booking.train.destination},
        {"matches": [], "searched": talk.chance.randint(40, 900)},
    )
    report = f"LP{talk.chance.randint(10000, 99999)}"
    talk.call(
        "open_lost_report",
        {"description": thing, "coach": coach, "email": booking.email},
        {"report": report, "kept_days": 90},
    )
    talk.agent(
        f"Nothing has been handed in so far. I opened report {report}; we write to "
        f"{booking.email} as soon as it turns up."
    )
    talk.user("Thank you, fingers crossed.", "Thanks so much!")


def _correct_name(talk: Dialogue, booking: Booking) -> None:
    if talk.chance.random() < 0.5:
        talk.user("My colleague travels instead of me. Can you put her name on it?")
        talk.agent(
            "A ticket cannot go to another person, I am sorry. I can hand you over to "
            "a colleague who looks at your case. Would you like that?"
        )
        talk.user("Yes, please.", "Yes. It is for work.")
        talk.call(
            "hand_over",
            {"booking": booking.code, "summary": "wants to pass the ticket on"},
            "A colleague will call back within two hours.",
        )
        talk.agent("I passed it on: a colleague will call you within two hours.")
        return
    wrong = booking.last_name[:-1]
    talk.user(f"My name is misspelt on the ticket, it says {wrong}.")
    talk.agent(f"I would correct it to {booking.last_name}, free of charge. All right?")
    talk.user("Yes, that is right.", "yes thank you")
    talk.call(
        "correct_name",
        {"booking": booking.code, "last_name": booking.last_name},
        {"booking": booking.code, "passenger": booking.last_name, "ticket_sent": True},
    )
    talk.agent("The name is right now; a new ticket is on its way by e-mail.")


def _ask_rules(talk: Dialogue, booking: Booking) -> None:
    talk.user("May my dog come along?", "Do dogs need a ticket?")
    talk.agent("A dog in a carrier travels free.")
    talk.user("And where is the quiet coach?", "Is there a place to work in peace?")
    talk.call(
        "get_formation",
        {"train": booking.train.number, "date": booking.date},
        {"coaches": 14, "bicycle_coach": 11, "quiet_coach": 4},
    )
    talk.agent(
        f"The quiet coach is number 4. You sit in coach {booking.coach}, "
        f"{booking.seat}."
    )


def _leave(talk: Dialogue) -> None:
    talk.user("No, that was all. Thank you!", "That's it, bye 👋", "No thanks.")
    talk.agent(
        "Have a good journey!", "Glad to help. Good-bye!", "Thank you, safe travels."
    )


_WISHES: Final[tuple[Callable[[Dialogue, Booking], None], ...]] = (
    _change_train,
    _cancel,
    _claim_delay,
    _add_bicycle,
    _report_lost,
    _correct_name,
    _ask_rules,
)
