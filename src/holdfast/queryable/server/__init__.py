"""Who answers: servers, their connections, and how they find each other."""
