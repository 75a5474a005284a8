"""Previews of a plan: actions, tools and cost."""
