"""An interaction without the folders of this machine (C4)."""

from dataclasses import replace

from aish.cassettes.edits import bytes_of, text_of
from aish.cassettes.interaction import Interaction
from aish.cassettes.path_placeholders import PathPlaceholders
from aish.cassettes.stream_text import replaced


def hidden(interaction: Interaction, places: PathPlaceholders) -> Interaction:
    """The interaction with the folders' names in place of their paths, as it is written."""
    if not places:
        return interaction
    request = interaction.request
    asked = replace(
        request,
        uri=places.hide(request.uri),
        body=bytes_of(places.hide(text_of(request.body))),
    )
    return Interaction(asked, replaced(interaction.response, places))
