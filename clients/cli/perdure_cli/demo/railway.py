"""A railway company that does not exist: its stations, trains and customers."""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

STATIONS: Final = (
    "Aldermoor",
    "Brückau",
    "Corvale",
    "Dunmarsh",
    "Eastry Junction",
    "Fjordhaven",
    "Grauwald",
    "Harrowgate Sands",
    "Îlemont",
    "Kestrel Bay",
)
_FIRST_NAMES: Final = (
    "Amara",
    "Zoë",
    "Łukasz",
    "Søren",
    "Priya",
    "Mateo",
    "Yuki",
    "Ingrid",
    "Tomasz",
    "Noor",
    "Céline",
    "Owen",
)
_LAST_NAMES: Final = (
    "Achterberg",
    "Bianchi",
    "Castellanos",
    "Dvořák",
    "Eriksen",
    "Fontaine",
    "Goldschmidt",
    "Hartono",
    "Ivarsson",
    "Kowalczyk",
    "Lindqvist",
    "O'Sullivan",
)
_FARES: Final = ("saver", "standard", "flexible")

POLICY: Final = """\
You are the service assistant of Fernrail, a passenger railway. Today is {today}.

Rules of the house:
1. Find the customer first: ask for the booking code or the e-mail address.
2. Before you change, cancel or pay out anything, say what you are about to do and \
what it costs, and wait for a clear yes.
3. Saver tickets: no refund, change for 12.00 EUR plus the difference in fare. \
Standard tickets: refund less 15 %, change for the difference in fare. Flexible \
tickets: refund in full, change free of charge.
4. Delay: from 60 minutes 25 % of the fare, from 120 minutes 50 %. A claim needs the \
date and the number of the train.
5. A bicycle needs a reservation (9.50 EUR). Dogs travel free in a carrier.
6. The name on a ticket can be corrected, not given to another person.
7. Lost property: take a description, the train and the coach, and open a report.
8. What these rules do not cover, a person decides: hand the conversation over.
9. Never guess the state of a train or a booking: look it up. Be short and friendly.
"""


@dataclass(frozen=True, slots=True)
class Train:
    """One train on one day."""

    number: str
    origin: str
    destination: str
    departs: str
    arrives: str
    fare_eur: float
    seats_free: int

    def shown(self) -> dict[str, Any]:
        """Return the train as the timetable tool gives it."""
        return {
            "train": self.number,
            "from": self.origin,
            "to": self.destination,
            "departs": self.departs,
            "arrives": self.arrives,
            "fare": {"amount": self.fare_eur, "currency": "EUR"},
            "seats_free": self.seats_free,
            "position": None,
        }


@dataclass(frozen=True, slots=True)
class Booking:
    """One customer's ticket."""

    code: str
    first_name: str
    last_name: str
    email: str
    fare: str
    date: str
    coach: int
    seat: str
    train: Train

    def shown(self) -> dict[str, Any]:
        """Return the booking as the booking tool gives it."""
        return {
            "booking": self.code,
            "passenger": f"{self.first_name} {self.last_name}",
            "email": self.email,
            "fare": self.fare,
            "date": self.date,
            "coach": self.coach,
            "seat": self.seat,
            "train": self.train.shown(),
            "extras": [],
        }


def make_date(chance: Random) -> str:
    """Return a day of the timetable, as text."""
    return f"2031-{chance.randint(3, 9):02}-{chance.randint(1, 28):02}"


def make_train(chance: Random, origin: str, destination: str, hour: int) -> Train:
    """Return a train between two stations that departs in this hour."""
    minute, minutes = chance.randint(0, 59), chance.randint(48, 260)
    arrival = hour * 60 + minute + minutes
    return Train(
        number=f"FR {chance.randint(100, 989)}",
        origin=origin,
        destination=destination,
        departs=f"{hour:02}:{minute:02}",
        arrives=f"{arrival // 60 % 24:02}:{arrival % 60:02}",
        fare_eur=round(minutes * chance.uniform(0.18, 0.42), 2),
        seats_free=chance.randint(2, 180),
    )


def make_booking(chance: Random) -> Booking:
    """Return a customer with a ticket."""
    origin, destination = chance.sample(STATIONS, 2)
    first_name, last_name = chance.choice(_FIRST_NAMES), chance.choice(_LAST_NAMES)
    number = chance.randint(10, 99)
    return Booking(
        code="".join(chance.choices("BCDFGHJKLMNPQRSTVWXZ", k=3)) + f"{number}7",
        first_name=first_name,
        last_name=last_name,
        email=f"customer{number}{chance.randint(100, 999)}@mail.example",
        fare=chance.choice(_FARES),
        date=make_date(chance),
        coach=chance.randint(1, 14),
        seat=f"{chance.randint(1, 88)}{chance.choice('ABCD')}",
        train=make_train(chance, origin, destination, chance.randint(6, 17)),
    )
