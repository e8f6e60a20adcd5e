pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
    }
}

rootProject.name = "notifications"
include(":kvik")
project(":kvik").projectDir = file("../../../bindings/kotlin/android")
